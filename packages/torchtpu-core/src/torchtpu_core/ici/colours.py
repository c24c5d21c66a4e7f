# SPDX-License-Identifier: Apache-2.0
"""Colours: which part of an array takes the axes of a span in which order.

Both network models and the explicit schedules are made from the same colours, so that
they speak of the same algorithm. Shares are such that colours alone would take equally
long; on a torus whose axes are alike they are equal, as in XLA:TPU's.

Legend: ``N`` length of an axis, ``W`` rate of an axis's links for one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu_core.ici.algorithms import Algorithm
from torchtpu_core.ici.span import SpanAxis

BOTH_WAYS = (1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """A part of the array.

    Attributes:
        share: fraction of the array.
        order: axes of the span in the order in which a reduce-scatter takes them; an
            all-gather takes them backwards.
        ways: directions round each ring: both, or one.
    """

    share: float
    order: tuple[int, ...]
    ways: tuple[int, ...] = BOTH_WAYS


def colours_of(algorithm: Algorithm, axes: Sequence[SpanAxis]) -> tuple[Colour, ...]:
    """The colours of an algorithm on the axes of a span."""
    count = len(axes)
    orders = [tuple((first + i) % count for i in range(count)) for first in range(count)]
    if algorithm.unidirectional:
        ways: list[tuple[int, ...]] = [(1,), (-1,)]
        made = [(order, way) for order in orders for way in ways]
    else:
        made = [(order, BOTH_WAYS) for order in orders]
    made = made[: algorithm.colours]
    speeds = [1 / _slowness(order, axes, len(way)) for order, way in made]
    return tuple(
        Colour(share=speed / sum(speeds), order=order, ways=way)
        for speed, (order, way) in zip(speeds, made, strict=True)
    )


def blocks(order: Sequence[int], axes: Sequence[SpanAxis]) -> list[tuple[int, float]]:
    """Axis, and fraction of the colour that a chip holds before it, of each gather phase.

    >>> axes = [SpanAxis(length=4, wrap=True), SpanAxis(length=8, wrap=True, axis=1)]
    >>> blocks((0, 1), axes)
    [(1, 0.03125), (0, 0.25)]
    """
    held, phases = 1.0, []
    for axis in order:
        held /= axes[axis].length
        phases.append((axis, held))
    return phases[::-1]


def _slowness(order: Sequence[int], axes: Sequence[SpanAxis], ways: int) -> float:
    """Time of a gather of one byte at one byte a second, without latency."""
    return sum(
        held * (axes[axis].length - 1) * axes[axis].sharing / (ways if axes[axis].wrap else 1)
        for axis, held in blocks(order, axes)
    )
