# SPDX-License-Identifier: Apache-2.0
"""Frames: where each chip of a group stands on the axes of a colour.

Positions number the chips of a group, the first axis of the span fastest. A colour's axis
gives each position a coordinate and its neighbours up and down. On a twisted torus, the
axis a colour starts with goes round twice, so its coordinate also tells the half of the
long axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtpu_core.ici.colours import Colour
from torchtpu_core.ici.fabric import ABSENT, Ints, neighbour_table
from torchtpu_core.ici.span import Span, SpanAxis
from torchtpu_core.ici.torus import Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameAxis:
    """One axis of a colour over all positions of a group.

    Attributes:
        axis: its length and links.
        coordinate: `[P]`, place of each position along it.
        up: `[P]`, the position one up, `ABSENT` at the end of a line.
        down: `[P]`, the position one down.
    """

    axis: SpanAxis
    coordinate: Ints
    up: Ints
    down: Ints

    def neighbour(self, way: int) -> Ints:
        """The position one up or one down."""
        return self.up if way > 0 else self.down


def frames_of(span: Span, colour: Colour, torus: Torus) -> list[FrameAxis]:
    """The frame of each axis of a colour, in its order."""
    if span.twisted:
        return _twisted(span, colour, torus)
    grid = span.torus
    table, positions = neighbour_table(grid), np.arange(grid.chips)
    frames = []
    for axis in colour.axes:
        index = span.axes.index(axis)
        below = int(np.prod(grid.shape[:index], dtype=np.int64))
        frames.append(
            FrameAxis(
                axis=axis,
                coordinate=positions // below % axis.length,
                up=table[:, 2 * index],
                down=table[:, 2 * index + 1],
            )
        )
    return frames


def _twisted(span: Span, colour: Colour, torus: Torus) -> list[FrameAxis]:
    table, positions = neighbour_table(torus), np.arange(torus.chips)
    lengths = np.array(torus.shape)
    below = np.concatenate([[1], np.cumprod(lengths)[:-1]])
    places = positions[:, None] // below % lengths
    short = min(torus.shape)
    half = places[:, -1] // short
    frames = []
    for order, axis in enumerate(colour.axes):
        coordinate = places[:, axis.axis] % axis.length
        if order == 0 and torus.shape[axis.axis] < axis.length:
            coordinate = coordinate + short * half
        up, down = table[:, 2 * axis.axis].copy(), table[:, 2 * axis.axis + 1].copy()
        if not axis.wrap:
            up[coordinate == axis.length - 1] = ABSENT
            down[coordinate == 0] = ABSENT
        frames.append(FrameAxis(axis=axis, coordinate=coordinate, up=up, down=down))
    return frames
