# SPDX-License-Identifier: Apache-2.0
"""Colours: which part of an array takes the axes of a span in which order.

Both network models and the explicit schedules are made from the same colours, so that
they speak of the same algorithm. Shares are such that colours alone would take equally
long; on a torus whose axes are alike they are equal, as in XLA:TPU's.

On a twisted torus a ring along a twisted axis goes round twice before it closes, and
passes both halves of the long axis. What is left for the other axes are then lines on the
short ones and on half of the long one: rings of 8, 4 and 4 on 4x4x8, as the compiler says.

Legend: ``N`` length of an axis, ``W`` rate of an axis's links for one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtpu_core.ici.algorithms import Algorithm
from torchtpu_core.ici.span import Span, SpanAxis

BOTH_WAYS = (1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """A part of the array.

    Attributes:
        share: fraction of the array.
        axes: in the order in which a reduce-scatter takes them; an all-gather takes them
            backwards.
        ways: directions round each ring: both, or one.
    """

    share: float
    axes: tuple[SpanAxis, ...]
    ways: tuple[int, ...] = BOTH_WAYS

    def phases(self) -> list[tuple[SpanAxis, float]]:
        """Axis, and fraction of the colour that a chip holds before it, of each gather phase.

        >>> four, eight = SpanAxis(length=4, wrap=True), SpanAxis(length=8, wrap=True, axis=1)
        >>> [held for _, held in Colour(share=1.0, axes=(four, eight)).phases()]
        [0.03125, 0.25]
        """
        held, found = 1.0, []
        for axis in self.axes:
            held /= axis.length
            found.append((axis, held))
        return found[::-1]

    def ways_on(self, axis: SpanAxis) -> tuple[int, ...]:
        """Directions along an axis; a line always takes both."""
        return self.ways if axis.wrap else BOTH_WAYS

    def sent(self, axis: SpanAxis, held_bytes: float) -> float:
        """Bytes on the busiest link of an axis, in one direction, in a gather of blocks."""
        ways = len(self.ways) if axis.wrap else 1
        return held_bytes * (axis.length - 1) * axis.sharing / ways

    def rounds(self, axis: SpanAxis) -> int:
        """Rounds of a gather along an axis."""
        both = axis.wrap and len(self.ways) > 1
        return axis.length // 2 if both else axis.length - 1


def colours_of(algorithm: Algorithm, span: Span) -> tuple[Colour, ...]:
    """The colours of an algorithm on a span."""
    count = len(span.axes)
    orders = [_order(span, first) for first in range(count)]
    ways = [(1,), (-1,)] if algorithm.unidirectional else [BOTH_WAYS]
    alone = [Colour(share=1.0, axes=axes, ways=way) for axes in orders for way in ways]
    alone = alone[: algorithm.colours]
    speeds = [1 / _slowness(colour) for colour in alone]
    return tuple(
        replace(colour, share=speed / sum(speeds))
        for colour, speed in zip(alone, speeds, strict=True)
    )


def _order(span: Span, first: int) -> tuple[SpanAxis, ...]:
    axes: Sequence[SpanAxis] = span.axes
    if span.twisted:
        axes = _untwisted(span, first)
    return (*axes[first:], *axes[:first])


def _untwisted(span: Span, first: int) -> list[SpanAxis]:
    """The axes of a whole twisted torus, as rings and lines, for a colour that starts at one."""
    short = min(axis.length for axis in span.axes)
    axes = []
    for index, axis in enumerate(span.axes):
        starts, twists = index == first, axis.length == short
        if starts and twists:
            axis = replace(axis, length=2 * short)
        elif twists:
            axis = replace(axis, wrap=False)
        elif index == len(span.axes) - 1 and span.axes[first].length == short:
            axis = replace(axis, length=short, wrap=False)
        axes.append(axis)
    return axes


def _slowness(colour: Colour) -> float:
    """Time of a gather of one byte at one byte a second, without latency."""
    return sum(colour.sent(axis, held) for axis, held in colour.phases())
