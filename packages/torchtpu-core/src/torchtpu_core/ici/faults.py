# SPDX-License-Identifier: Apache-2.0
"""Faults: links and chips that are down or slow, and what still works.

A cable that is down is routed around: the shortest way over what is left takes its place,
and its flows share the links of that way. A chip that is down makes every collective of its
slice impossible, since all chips take part: the message names the largest slices that avoid
it. In a job of several slices, a fault of one holds up all, as if all had it.

Not modelled: the time to detect a fault and to load new routes, and spare optical paths.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.errors import FaultError
from torchtpu_core.ici.slices import CUBE_SIDE, Slice, possible_shapes, shape_name
from torchtpu_core.ici.torus import Link, Torus

Cable = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a slice. Chips are numbered as its torus numbers them.

    Attributes:
        cables_down: pairs of neighbours whose cable is down, both ways.
        cables_slow: pairs of neighbours, and the fraction of the rate their cable has left.
        chips_down: chips that are down.
        chips_slow: chips, and the fraction of the rate all their links have left.
        chips_late: stragglers: chips, and the picoseconds by which they come late.
    """

    cables_down: frozenset[Cable] = frozenset()
    cables_slow: Mapping[Cable, float] = field(default_factory=dict)
    chips_down: frozenset[int] = frozenset()
    chips_slow: Mapping[int, float] = field(default_factory=dict)
    chips_late: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [(f"Cable {a}-{b}", left) for (a, b), left in self.cables_slow.items()]
        named += [(f"Chip {chip}", left) for chip, left in self.chips_slow.items()]
        for what, left in named:
            if not 0 < left <= 1:
                raise FaultError(
                    f"{what} cannot have {left} of its rate left: give a fraction above 0 and "
                    "at most 1, or list it as down."
                )

    def __bool__(self) -> bool:
        return bool(
            self.cables_down
            or self.cables_slow
            or self.chips_down
            or self.chips_slow
            or self.chips_late
        )

    def __hash__(self) -> int:
        maps = (self.cables_slow, self.chips_slow, self.chips_late)
        return hash((self.cables_down, self.chips_down, *(tuple(sorted(m.items())) for m in maps)))

    def described(self) -> list[str]:
        """What is wrong, as `parse_faults` reads it."""
        return [
            *(f"cable:{one}-{other}=down" for one, other in sorted(self.cables_down)),
            *(f"cable:{a}-{b}={left:g}" for (a, b), left in sorted(self.cables_slow.items())),
            *(f"chip:{chip}=down" for chip in sorted(self.chips_down)),
            *(f"chip:{chip}={left:g}" for chip, left in sorted(self.chips_slow.items())),
            *(f"late:{chip}={ps / 1e9:g}ms" for chip, ps in sorted(self.chips_late.items())),
        ]

    def check(self, torus: Torus) -> None:
        """Refuses faults of what a torus does not have.

        Raises:
            DeviceIndexError: a chip outside the torus.
            FaultError: a cable between chips that are no neighbours.
        """
        for chip in (*self.chips_down, *self.chips_slow, *self.chips_late):
            torus.coordinates(chip)
        for one, other in (*self.cables_down, *self.cables_slow):
            if other not in torus.neighbours(one):
                near = ", ".join(map(str, sorted(set(torus.neighbours(one)))))
                has = f"Chip {one}'s neighbours are {near}." if near else f"Chip {one} has none."
                raise FaultError(f"Chips {one} and {other} have no cable between them. {has}")

    def fraction(self, link: Link) -> float:
        """What a link has left of its rate; 0 if it is down."""
        ends = (link.source, link.target), (link.target, link.source)
        if any(end in self.cables_down for end in ends) or self.chips_down & set(ends[0]):
            return 0.0
        left = [self.cables_slow[end] for end in ends if end in self.cables_slow]
        left += [self.chips_slow[chip] for chip in ends[0] if chip in self.chips_slow]
        return min(left, default=1.0)

    def affected(self, torus: Torus) -> dict[Link, float]:
        """The links that are not whole, and what they have left."""
        chips = set(itertools.chain(*self.cables_down, *self.cables_slow))
        chips |= {*self.chips_down, *self.chips_slow}
        near = chips | {n for chip in chips for n in torus.neighbours(chip)}
        links = [link for chip in sorted(near) for link in torus.links_from(chip)]
        return {link: self.fraction(link) for link in links if self.fraction(link) < 1}


NO_FAULTS = Faults()


_FAULT = re.compile(
    r"cable:(?P<one>\d+)-(?P<other>\d+)=(?P<cable>down|[\d.]+)"
    r"|chip:(?P<chip>\d+)=(?P<rate>down|[\d.]+)"
    r"|late:(?P<late>\d+)=(?P<time>[\d.]+)(?P<unit>us|ms|s)"
)
_UNITS_PS = {"us": 1e6, "ms": 1e9, "s": 1e12}


def parse_faults(texts: Sequence[str]) -> Faults:
    """Faults as a command line gives them.

    Raises:
        FaultError: a text that is none.

    >>> parse_faults(["cable:0-1=down", "chip:5=0.5", "late:7=2ms"]).described()
    ['cable:0-1=down', 'chip:5=0.5', 'late:7=2ms']
    """
    down, slow, chips_down, chips_slow, late = set(), {}, set(), {}, {}
    for text in texts:
        found = _FAULT.fullmatch(text)
        if found is None:
            raise FaultError(
                f"{text!r} is no fault. Write cable:0-1=down, cable:0-1=0.5 (what is left of its "
                "rate), chip:5=down, chip:5=0.5 or late:7=2ms."
            )
        if found["cable"]:
            ends = int(found["one"]), int(found["other"])
            if found["cable"] == "down":
                down.add(ends)
            else:
                slow[ends] = float(found["cable"])
        elif found["rate"] == "down":
            chips_down.add(int(found["chip"]))
        elif found["rate"]:
            chips_slow[int(found["chip"])] = float(found["rate"])
        else:
            late[int(found["late"])] = round(float(found["time"]) * _UNITS_PS[found["unit"]])
    return Faults(
        cables_down=frozenset(down),
        cables_slow=slow,
        chips_down=frozenset(chips_down),
        chips_slow=chips_slow,
        chips_late=late,
    )


def detour(torus: Torus, faults: Faults, link: Link) -> list[Link]:
    """The shortest way around a link that is down.

    Of several, the one that leaves first along the lowest axis, in the link's own direction: ways
    around the two directions of a cable are mirror images.

    Raises:
        FaultError: there is none: the faults cut the torus.
    """
    came: dict[int, Link | None] = {link.source: None}
    waiting = deque([link.source])
    while waiting and link.target not in came:
        chip = waiting.popleft()
        for step in sorted(torus.links_from(chip), key=lambda s: (s.axis, s.step != link.step)):
            if step.target not in came and faults.fraction(step) > 0:
                came[step.target] = step
                waiting.append(step.target)
    if link.target not in came:
        cut_off = link.source if 2 * len(came) < torus.chips else link.target
        raise FaultError(
            f"The faults cut the torus: no way is left from chip {link.source} to chip "
            f"{link.target}; {len(came)} of {torus.chips} chips can be reached. Repair a cable "
            f"of chip {cut_off}, or use a slice without it."
        )
    way: list[Link] = []
    at = link.target
    while (last := came[at]) is not None:
        way.append(last)
        at = last.source
    return way[::-1]


def refuse_chips_down(slice_: Slice, faults: Faults) -> None:
    """Refuses collectives of a slice with chips down.

    Raises:
        FaultError: names the chips, and the largest slices without them.
    """
    if not faults.chips_down:
        return
    chips = ", ".join(map(str, sorted(faults.chips_down)))
    verb = "are" if len(faults.chips_down) > 1 else "is"
    raise FaultError(
        f"Chip {chips} of {slice_.name} {verb} down, so that no collective over all of its chips "
        f"is possible. Use {_instead(slice_, faults)}, or several slices."
    )


def refuse_cut(slice_: Slice, faults: Faults) -> None:
    """Refuses a slice that its cables which are down cut in parts.

    Raises:
        FaultError: names a chip that cannot be reached, and the largest slices without the faults.
    """
    for one, other in sorted(faults.cables_down):
        link = next(way for way in slice_.torus.links_from(one) if way.target == other)
        try:
            detour(slice_.torus, faults, link)
        except FaultError as error:
            raise FaultError(f"{error} That is {_instead(slice_, faults)}.") from error


def _instead(slice_: Slice, faults: Faults) -> str:
    """The largest slices without the faults, in words."""
    nearest = largest_whole(slice_, faults)
    names = [
        f"{slice_.chip.name}:{shape_name(shape)} from chip {first}" for shape, first in nearest
    ]
    return " or ".join(names) or "another slice"


def largest_whole(
    slice_: Slice, faults: Faults, count: int = 2
) -> list[tuple[tuple[int, ...], int]]:
    """The largest shapes within a slice that no fault touches, and their first chips."""
    torus, bounds = slice_.torus, np.array(slice_.host_bounds)
    bad = [torus.coordinates(chip) for chip in sorted(faults.chips_down)]
    bad_cables = [tuple(map(torus.coordinates, cable)) for cable in sorted(faults.cables_down)]
    found = []
    for shape in sorted(possible_shapes(slice_.chip), key=math.prod, reverse=True):
        if any(length > whole for length, whole in zip(shape, torus.shape, strict=True)):
            continue
        # Cubes are joined by switched optics at their faces only.
        cubes = all(length % CUBE_SIDE == 0 for length in shape) and len(shape) == 3
        steps = [
            np.arange(0, whole - length + 1, CUBE_SIDE if cubes else min(bound, length))
            for whole, length, bound in zip(torus.shape, shape, bounds, strict=True)
        ]
        starts = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, len(shape))

        def inside(
            place: tuple[int, ...],
            starts: np.ndarray = starts,
            shape: tuple[int, ...] = shape,
        ) -> np.ndarray:
            within: np.ndarray = (starts <= place) & (np.array(place) < starts + shape)
            return np.asarray(within.all(axis=1))

        free = np.ones(len(starts), dtype=bool)
        for place in bad:
            free &= ~inside(place)
        for one, other in bad_cables:
            free &= ~(inside(one) & inside(other))
        if free.any():
            first = tuple(int(place) for place in starts[free.argmax()])
            found.append((shape, torus.chip_at(first)))
        if len(found) == count:
            break
    return found
