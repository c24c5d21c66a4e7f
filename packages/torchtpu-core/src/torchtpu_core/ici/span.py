# SPDX-License-Identifier: Apache-2.0
"""What a group of devices spans: the part of the network that its collective runs on.

A span is regular: a grid of chips whose neighbours are a fixed number of hops apart. All
groups of one mesh axis have the same span, and run at the same time, as SPMD programs do;
where they interleave, each link carries the traffic of several of them.

Legend: ``N`` length of an axis, ``P`` chips of a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtpu_core.errors import MeshShapeError
from torchtpu_core.ici.torus import SMALLEST_RING, Torus

#: Physical axis of a span axis that follows none: its chips are listed in `Span.members`.
NO_AXIS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAxis:
    """One axis of a span.

    Attributes:
        length: chips of a group along it, at least two.
        wrap: whether the last is a neighbour of the first.
        axis: the physical axis of the torus it runs along, or `NO_AXIS`.
        stride: hops between neighbours.
        sharing: groups whose traffic shares each link; the stride of a regular axis.
    """

    length: int
    wrap: bool
    axis: int = 0
    stride: int = 1
    sharing: int = 1

    def __post_init__(self) -> None:
        if self.length < 2 or (self.wrap and self.length < SMALLEST_RING):
            raise MeshShapeError(
                f"An axis of {self.length} chip(s), wrap={self.wrap}, spans nothing: a line has "
                f"at least 2 chips and a ring {SMALLEST_RING}."
            )

    @property
    def rounds(self) -> int:
        """Hops, in units of the stride, to the farthest chip."""
        return self.length // 2 if self.wrap else self.length - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What each of the groups of a collective spans.

    Attributes:
        axes: the axes of more than one chip; none for a group within one chip.
        cores: devices of the group on each of its chips.
        sharing: groups that share the links of these chips evenly, because the other
            devices of the chips form groups of their own.
        slices: slices that the group spans, joined by the data centre network.
        members: for a group without regular shape, its chips in the order of the line that
            stands for it.
        twisted: whether the span is a whole twisted torus.
    """

    axes: tuple[SpanAxis, ...]
    cores: int = 1
    sharing: int = 1
    slices: int = 1
    members: tuple[int, ...] | None = None
    twisted: bool = False

    @property
    def chips_per_slice(self) -> int:
        """Chips of a group within each slice."""
        return math.prod(axis.length for axis in self.axes)

    @property
    def chips(self) -> int:
        """P, the chips of a group."""
        return self.chips_per_slice * self.slices

    @property
    def devices(self) -> int:
        """Devices of a group."""
        return self.chips * self.cores

    @property
    def torus(self) -> Torus:
        """The shape and wrap of the part within a slice; one chip is a line of one."""
        if not self.axes:
            return Torus(shape=(1,), wrap=(False,))
        return Torus(
            shape=tuple(axis.length for axis in self.axes),
            wrap=tuple(axis.wrap for axis in self.axes),
        )

    @property
    def devices_per_chip(self) -> int:
        """The same as `cores`."""
        return self.cores
