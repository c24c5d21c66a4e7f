# SPDX-License-Identifier: Apache-2.0
"""Which part of a slice a group of devices is.

A collective runs over a group of ranks; its time depends on the torus the group
spans. Groups that are a box of the slice keep its rings; any other group is priced as
a line of its chips, which is what a router without knowledge of the shape achieves at
best one hop at a time. Traffic of other groups on the same links is not modelled,
except that of the sibling devices of the same chips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.torus import Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a group of devices spans.

    Attributes:
        torus: the chips of the group.
        devices_per_chip: devices of the group on each of its chips.
        sharing: groups that share the links of these chips, this one included.
    """

    torus: Torus
    devices_per_chip: int
    sharing: int


def span_of(group: Sequence[int], slice_: Slice) -> Span:
    """The span of a group of device numbers.

    >>> from torchtpu_core.ici.slices import parse_slice
    >>> span_of([0, 1, 2, 3], parse_slice("v5e:4x4")).torus.shape
    (4,)
    """
    group_chips = sorted({slice_.chip_of(device) for device in group})
    per_chip = max(1, len(group) // len(group_chips))
    return Span(
        torus=_box(group_chips, slice_.torus) or line(len(group_chips)),
        devices_per_chip=per_chip,
        sharing=slice_.devices_per_chip // per_chip,
    )


def line(chips: int) -> Torus:
    """Chips in a row, without wrap-around."""
    return Torus(shape=(chips,), wrap=(False,))


def _box(group_chips: Sequence[int], torus: Torus) -> Torus | None:
    """The sub-torus the chips fill, without axes of length one, or None."""
    positions = [torus.coordinates(chip) for chip in group_chips]
    shape, wrap, volume = [], [], 1
    for axis in torus.axes:
        places = sorted({position[axis] for position in positions})
        if places[-1] - places[0] + 1 != len(places):
            return None
        volume *= len(places)
        if len(places) > 1:
            shape.append(len(places))
            wrap.append(torus.wrap[axis] and len(places) == torus.shape[axis])
    if volume != len(group_chips):
        return None
    return Torus(shape=tuple(shape), wrap=tuple(wrap)) if shape else line(1)
