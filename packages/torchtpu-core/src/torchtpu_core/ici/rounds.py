# SPDX-License-Identifier: Apache-2.0
"""Rounds of gathers and scatters: which position sends which piece where, step by step.

A colour's data is cut into units, two for each of its `P` blocks: units are numbered with
the colour's first axis slowest, so that what a chip holds between phases is one range. All
ring algorithms are made of one: the gather along an axis. A reduce-scatter is a gather with
time and arrows reversed, and adds.

A gather both ways round a ring of ``N`` takes ``floor(N/2)`` rounds; where N is even the
last one carries half of each block each way. One way round, or on a line, it takes N - 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtpu_core.ici.colours import Colour
from torchtpu_core.ici.fabric import ABSENT, Ints
from torchtpu_core.ici.frames import FrameAxis
from torchtpu_core.ici.span import SpanAxis

UNITS_PER_BLOCK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What some positions send to their neighbours on one axis, at the same time.

    Attributes:
        frame: the axis.
        way: up or down it.
        sources: `[n]`, positions that send.
        targets: `[n]`, the positions that receive.
        start: `[n]`, first unit that each sends.
        units: units that each sends, in one piece.
        adds: whether the receiver adds; it keeps otherwise.
    """

    frame: FrameAxis
    way: int
    sources: Ints
    targets: Ints
    start: Ints
    units: int
    adds: bool = False


Round = tuple[Move, ...]


def units_of(frames: Sequence[FrameAxis]) -> int:
    """Units of a colour's data."""
    return UNITS_PER_BLOCK * int(np.prod([f.axis.length for f in frames], dtype=np.int64))


def held_start(frames: Sequence[FrameAxis], depth: int) -> Ints:
    """First unit of what each position holds when `depth` axes are still scattered, `[P]`."""
    start = np.zeros_like(frames[0].coordinate)
    for index, frame in enumerate(frames):
        start = start * frame.axis.length
        if index < depth:
            start = start + frame.coordinate
    return start * UNITS_PER_BLOCK


def gather_rounds(frames: Sequence[FrameAxis], colour: Colour) -> list[Round]:
    """Rounds after which every position has all units, from one block each."""
    rounds: list[Round] = []
    for depth in range(len(frames), 0, -1):
        frame = frames[depth - 1]
        units = units_of(frames[depth:])
        # Start of what is gathered on this axis, at coordinate zero.
        base = held_start(frames, depth) - frame.coordinate * units
        for step, halves in _steps(frame.axis, colour):
            moves = [
                _move(frame, way, step, base, units, half)
                for way, half in zip(colour.ways_on(frame.axis), halves, strict=True)
            ]
            rounds.append(tuple(move for move in moves if len(move.sources)))
    return rounds


def reversed_rounds(rounds: Sequence[Round]) -> list[Round]:
    """The reduce-scatter that is a gather backwards."""
    return [
        tuple(
            replace(move, sources=move.targets, targets=move.sources, way=-move.way, adds=True)
            for move in moves
        )
        for moves in reversed(rounds)
    ]


def _steps(axis: SpanAxis, colour: Colour) -> Iterator[tuple[int, tuple[int | None, ...]]]:
    """Step numbers of a gather, and for each way which half it carries; None is all."""
    ways, count = len(colour.ways_on(axis)), colour.rounds(axis)
    split = axis.wrap and ways == 2 and axis.length % 2 == 0
    for step in range(count):
        yield step, (0, 1) if split and step == count - 1 else (None,) * ways


def _move(frame: FrameAxis, way: int, step: int, base: Ints, units: int, half: int | None) -> Move:
    """One step of a gather: each sends on what came from `step` places behind it."""
    length = frame.axis.length
    origin = frame.coordinate - way * step
    sends = frame.neighbour(way) != ABSENT
    if not frame.axis.wrap:
        sends = sends & (origin >= 0) & (origin < length)
    sources = np.flatnonzero(sends)
    size = units if half is None else units // 2
    start = base[sources] + origin[sources] % length * units + (half or 0) * size
    return Move(
        frame=frame,
        way=way,
        sources=sources,
        targets=frame.neighbour(way)[sources],
        start=start,
        units=size,
    )
