# SPDX-License-Identifier: Apache-2.0
"""Geometry of a torus: coordinates, links, distances, cuts.

Chips are numbered with the first axis running fastest: in a 2x4 slice chip 1 is at
(1, 0) and chip 2 at (0, 1). An axis that does not wrap is a line, one that wraps is a
ring. In a twisted torus the wrap-around of an axis also shifts other axes, so that rings are
longer and no axis is the narrow one. Nothing here knows a rate or a time.

References: Camara et al., Twisted Torus Topologies for Enhanced Interconnection Networks,
IEEE TPDS 21(12), 2010; Jouppi et al., TPU v4, arXiv 2304.01433, section 2.8.

Legend: ``N_i`` is the length of axis i, ``P`` the number of chips.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_core.errors import DeviceIndexError, MeshShapeError

# A wrapped axis of two chips would join the same pair twice.
SMALLEST_RING = 3

Coordinates = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one cable.

    Attributes:
        source: chip that sends.
        target: chip that receives.
        axis: axis along which the link runs.
        step: +1 or -1, the direction along the axis.
    """

    source: int
    target: int
    axis: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A torus, mesh, ring or line of chips.

    Attributes:
        shape: chips along each axis.
        wrap: whether each axis closes to a ring.
        twist: for each axis, by how many chips its wrap-around shifts each axis; empty if
            nothing is twisted.
    """

    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    twist: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.twisted and not all(self.wrap):
            raise MeshShapeError(f"A twisted torus of shape {self.shape} wraps on every axis.")
        if len(self.shape) != len(self.wrap):
            raise MeshShapeError(
                f"A torus of shape {self.shape} needs one wrap flag per axis, not {self.wrap}."
            )
        for length, wrapped in zip(self.shape, self.wrap, strict=True):
            if length < 1:
                raise MeshShapeError(f"Every axis has at least one chip, unlike {self.shape}.")
            if wrapped and length < SMALLEST_RING:
                raise MeshShapeError(
                    f"An axis of {length} chip(s) in {self.shape} cannot wrap: a ring has "
                    f"at least {SMALLEST_RING} chips. Pass wrap=False for it."
                )

    @property
    def chips(self) -> int:
        """P, the number of chips."""
        return math.prod(self.shape)

    @property
    def axes(self) -> range:
        """The axes, including those of length one."""
        return range(len(self.shape))

    @property
    def twisted(self) -> bool:
        """Whether any wrap-around shifts another axis."""
        return any(map(any, self.twist))

    def twist_of(self, axis: int) -> Coordinates:
        """By how many chips the wrap-around of an axis shifts each axis."""
        return self.twist[axis] if self.twist else (0,) * len(self.shape)

    def coordinates(self, chip: int) -> Coordinates:
        """The position of a chip.

        >>> Torus(shape=(2, 4), wrap=(False, False)).coordinates(3)
        (1, 1)
        """
        if not 0 <= chip < self.chips:
            raise DeviceIndexError(
                f"Chip {chip} is not in a torus of {self.chips} chips, 0 to {self.chips - 1}."
            )
        position = []
        for length in self.shape:
            chip, place = divmod(chip, length)
            position.append(place)
        return tuple(position)

    def chip_at(self, coordinates: Coordinates) -> int:
        """The chip at a position; the inverse of `coordinates`."""
        chip = 0
        for place, length in zip(reversed(coordinates), reversed(self.shape), strict=True):
            if not 0 <= place < length:
                raise DeviceIndexError(f"{coordinates} is outside a torus of shape {self.shape}.")
            chip = chip * length + place
        return chip

    def links_from(self, chip: int) -> Iterator[Link]:
        """The links on which a chip sends, axis by axis."""
        position = self.coordinates(chip)
        for axis in self.axes:
            for step in (1, -1):
                target = self._moved(position, axis, step)
                if target is not None:
                    yield Link(chip, target, axis, step)

    def _moved(self, position: Coordinates, axis: int, step: int) -> int | None:
        """The chip one step along an axis, if there is one."""
        places = list(position)
        places[axis] += step
        round_again = places[axis] // self.shape[axis]
        if round_again and not self.wrap[axis]:
            return None
        turns = [round_again * shift for shift in self.twist_of(axis)]
        wrapped = zip(places, turns, self.shape, strict=True)
        return self.chip_at(tuple((place + turn) % length for place, turn, length in wrapped))

    def links(self) -> Iterator[Link]:
        """All links, each direction by itself."""
        for chip in range(self.chips):
            yield from self.links_from(chip)

    def neighbours(self, chip: int) -> tuple[int, ...]:
        """The chips one hop away."""
        return tuple(link.target for link in self.links_from(chip))

    def axis_distance(self, axis: int, start: int, end: int) -> int:
        """Hops along one axis between two places, the shorter way round a ring."""
        direct = abs(start - end)
        return min(direct, self.shape[axis] - direct) if self.wrap[axis] else direct

    def hop_distance(self, source: int, target: int) -> int:
        """Hops on a shortest route between two chips."""
        if self.twisted:
            return _distances(self)[self._offset(source, target)]
        ends = zip(self.coordinates(source), self.coordinates(target), strict=True)
        return sum(self.axis_distance(axis, *pair) for axis, pair in enumerate(ends))

    @property
    def diameter(self) -> int:
        """The largest hop distance."""
        if self.twisted:
            return max(_distances(self))
        return sum(self._reach(axis) for axis in self.axes)

    @property
    def fewest_links(self) -> int:
        """Links, in one direction, of the chip that has fewest: a corner."""
        return sum(2 if self.wrap[axis] else 1 for axis in self.axes if self.shape[axis] > 1)

    def cut_links(self, axis: int) -> int:
        """Links, in one direction, between two halves of an axis of length over one."""
        across = self.chips // self.shape[axis]
        return across * (2 if self.wrap[axis] else 1)

    def _offset(self, source: int, target: int) -> int:
        """The chip that is to chip 0 as `target` is to `source`, on a torus that wraps."""
        ends = zip(self.coordinates(source), self.coordinates(target), strict=True)
        moved = [end - start for start, end in ends]
        for axis, length in enumerate(self.shape):
            turns, moved[axis] = divmod(moved[axis], length)
            # Once round an axis is the same as its twist.
            moved = [m + turns * shift for m, shift in zip(moved, self.twist_of(axis), strict=True)]
        return self.chip_at(tuple(moved))

    def _reach(self, axis: int) -> int:
        length = self.shape[axis]
        return length // 2 if self.wrap[axis] else length - 1


@functools.lru_cache(maxsize=32)
def _distances(torus: Torus) -> tuple[int, ...]:
    """Hops from chip 0 to every chip, found by going over the links."""
    hops, frontier = {0: 0}, [0]
    while frontier:
        reached = dict.fromkeys(n for chip in frontier for n in torus.neighbours(chip))
        frontier = [chip for chip in reached if chip not in hops]
        hops |= dict.fromkeys(frontier, max(hops.values()) + 1)
    return tuple(hops[chip] for chip in range(torus.chips))
