# SPDX-License-Identifier: Apache-2.0
"""Where the groups of a span lie in a slice: positions of a group to chips.

All groups of a mesh axis are placed, because they run at the same time. A position's place
on a span axis is a digit of its chip's place on the physical axis.
"""

from __future__ import annotations

import numpy as np

from torchtpu_core.ici.fabric import Ints
from torchtpu_core.ici.span import NO_AXIS, Span
from torchtpu_core.ici.torus import Torus


def embed(span: Span, torus: Torus) -> Ints:
    """The chips of every group, `[groups, P]`.

    A group without regular shape is the only one placed.
    """
    if span.members is not None:
        return np.array([span.members], dtype=np.int64)
    if span.twisted:
        return np.arange(torus.chips)[None, :]
    lengths = np.array(torus.shape)
    below = np.concatenate([[1], np.cumprod(lengths)[:-1]])
    places = np.arange(torus.chips)[:, None] // below % lengths
    first = np.ones(torus.chips, dtype=bool)
    reach = np.zeros(len(lengths), dtype=np.int64)
    positions = np.arange(span.chips_per_slice)
    offsets = np.zeros_like(positions)
    for axis in span.axes:
        first &= places[:, axis.axis] // axis.stride % axis.length == 0
        reach[axis.axis] += (axis.length - 1) * axis.stride
        positions, place = np.divmod(positions, axis.length)
        offsets = offsets + place * axis.stride * below[axis.axis]
    # A group that would run over the end of an axis is none.
    first &= (places + reach < lengths).all(axis=1)
    result: Ints = np.flatnonzero(first)[:, None] + offsets
    return result


def alike_everywhere(span: Span) -> bool:
    """Whether every chip sees the same: all axes are rings of the torus, none is a line."""
    return not span.twisted and all(axis.wrap and axis.axis != NO_AXIS for axis in span.axes)
