# SPDX-License-Identifier: Apache-2.0
"""Which part of the network a group of devices is.

A collective runs over a group of ranks; its time depends on what the group spans. Groups
that are a grid of the slice, dense or with gaps of a fixed size, keep its rings and lines.
Any other group is taken as a line of its chips in order, which is what a router without
knowledge of the shape achieves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.span import NO_AXIS, Span, SpanAxis
from torchtpu_core.ici.torus import SMALLEST_RING, Torus


def span_of(group: Sequence[int], where: Slice | Network) -> Span:
    """The span of a group of device numbers.

    >>> from torchtpu_core.ici.slices import parse_slice
    >>> span_of([0, 1, 2, 3], parse_slice("v5e:4x4")).torus.shape
    (4,)
    """
    slice_ = where.slice_ if isinstance(where, Network) else where
    devices = np.unique(np.asarray(group, dtype=np.int64))
    in_slice, local = np.divmod(devices, slice_.devices)
    chips = np.unique(local // slice_.devices_per_chip)
    slices = len(np.unique(in_slice))
    # Slices that take part with different chips make no grid; they are priced as one that does.
    cores = max(1, len(devices) // (len(chips) * slices))
    axes = _grid(chips, slice_.torus)
    return Span(
        axes=_line(chips, slice_.torus) if axes is None else axes,
        cores=cores,
        sharing=slice_.devices_per_chip // cores,
        slices=slices,
        members=tuple(chips.tolist()) if axes is None else None,
        twisted=bool(axes) and slice_.torus.twisted and len(chips) == slice_.torus.chips,
    )


def whole(where: Slice | Network) -> Span:
    """The span of all devices of a slice, or of a job's slices.

    >>> from torchtpu_core.ici.slices import parse_slice
    >>> whole(parse_slice("v5p:4x4x8")).chips
    128
    """
    network = where if isinstance(where, Network) else None
    slice_ = where if isinstance(where, Slice) else where.slice_
    torus = slice_.torus
    return Span(
        axes=whole_axes(torus),
        cores=slice_.devices_per_chip,
        slices=network.slices if network else 1,
        twisted=torus.twisted,
    )


def whole_axes(torus: Torus) -> tuple[SpanAxis, ...]:
    """The axes of all chips of a torus."""
    return tuple(
        SpanAxis(length=length, wrap=torus.wrap[axis], axis=axis)
        for axis, length in enumerate(torus.shape)
        if length > 1
    )


def grid_axis(torus: Torus, axis: int, length: int, stride: int) -> SpanAxis:
    """The axis of `length` chips, `stride` hops apart, along one of the torus.

    It closes to a ring where the steps come round to the start, and the torus does not twist
    there.
    """
    closes = torus.wrap[axis] and not any(torus.twist_of(axis))
    return SpanAxis(
        length=length,
        wrap=closes and length * stride == torus.shape[axis] and length >= SMALLEST_RING,
        axis=axis,
        stride=stride,
        sharing=stride,
    )


def _grid(chips: np.ndarray, torus: Torus) -> tuple[SpanAxis, ...] | None:
    """The axes of the grid the chips fill, or None."""
    found, volume, below = [], 1, 1
    for axis, length in enumerate(torus.shape):
        places = np.unique(chips // below % length)
        below *= length
        if len(places) == 1:
            continue
        steps = np.unique(np.diff(places))
        if len(steps) != 1:
            return None
        volume *= len(places)
        found.append((axis, len(places), int(steps[0])))
    if volume != len(chips):
        return None
    if torus.twisted and volume == torus.chips:
        return whole_axes(torus)
    return tuple(grid_axis(torus, *place) for place in found)


def _line(chips: np.ndarray, torus: Torus) -> tuple[SpanAxis, ...]:
    ends = zip(chips[:-1].tolist(), chips[1:].tolist(), strict=True)
    stride = max(torus.hop_distance(*pair) for pair in ends)
    return (SpanAxis(length=len(chips), wrap=False, axis=NO_AXIS, stride=stride),)
