# SPDX-License-Identifier: Apache-2.0
"""Explicit schedules: every piece of a collective on its way from chip to chip.

A schedule has lanes, one per colour. The rounds of a lane follow each other on each chip:
a chip sends in a round when it has received and sent all of its earlier ones. Lanes do not
wait for each other. Schedules are stated on the positions of one group; `execute` runs them
on values, `link_level` on links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.algorithms import Algorithm, pipeline_pieces
from torchtpu_core.ici.colours import Colour, colours_of
from torchtpu_core.ici.fabric import Ints
from torchtpu_core.ici.frames import FrameAxis, frames_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.rounds import (
    Move,
    Round,
    gather_rounds,
    held_start,
    reversed_rounds,
    units_of,
)
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.torus import Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The rounds of one colour.

    Attributes:
        rounds: in order.
        units: units of data that the colour is cut into.
        unit_bytes: bytes of a unit.
        owner: `[P]`, first unit of the block that each position has alone: before a gather,
            and after a reduce-scatter.
        block: units of that block.
    """

    rounds: tuple[Round, ...]
    units: int
    unit_bytes: float
    owner: Ints
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A collective, spelled out.

    Attributes:
        kind: the collective.
        algorithm: the algorithm it spells out.
        positions: P, chips of a group.
        lanes: one per colour.
    """

    kind: CollectiveKind
    algorithm: Algorithm
    positions: int
    lanes: tuple[Lane, ...]


def ring_schedule(
    kind: CollectiveKind, whole: float, span: Span, algorithm: Algorithm, torus: Torus
) -> Schedule:
    """The schedule of a collective made of rings or lines.

    Args:
        kind: all-gather, reduce-scatter, all-reduce, or broadcast from position 0.
        whole: bytes of the whole array.
        span: what the group spans within a slice.
        algorithm: how it is carried out.
        torus: the torus of the slice, for a twisted span.

    Raises:
        TorchTPUError: another kind; those are messages.
    """
    if kind not in _RINGS:
        raise TorchTPUError(f"{kind} has no rings: its schedule is a set of messages.")
    if algorithm.pipelined:
        lanes = _pipeline(whole, span, torus)
    else:
        lanes = tuple(
            _lane(kind, whole, colour, frames_of(span, colour, torus), algorithm)
            for colour in colours_of(algorithm, span)
        )
    return Schedule(kind=kind, algorithm=algorithm, positions=span.chips_per_slice, lanes=lanes)


_RINGS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
)


def _lane(
    kind: CollectiveKind,
    whole: float,
    colour: Colour,
    frames: Sequence[FrameAxis],
    algorithm: Algorithm,
) -> Lane:
    units = units_of(frames)
    gather = gather_rounds(frames, colour)
    scatter = reversed_rounds(gather)
    if algorithm.single_phase:
        # What is gathered is every chip's whole array.
        whole *= len(frames[0].coordinate)
        rounds = gather
    else:
        rounds = {
            CollectiveKind.ALL_GATHER: gather,
            CollectiveKind.REDUCE_SCATTER: scatter,
        }.get(kind, scatter + gather)
    return Lane(
        rounds=tuple(rounds),
        units=units,
        unit_bytes=whole * colour.share / units,
        owner=held_start(frames, len(frames)),
        block=units // len(frames[0].coordinate),
    )


def _pipeline(whole: float, span: Span, torus: Torus) -> tuple[Lane, ...]:
    """A broadcast from position 0 along one axis, in pieces that follow each other."""
    ways = (1, -1) if span.axes[0].wrap else (1,)
    colour = Colour(share=1 / len(ways), axes=span.axes)
    (frame,) = frames_of(span, colour, torus)
    length, pieces = frame.axis.length, pipeline_pieces(whole / len(ways))
    lanes = []
    for way in ways:
        place = frame.coordinate * way % length
        rounds = []
        for step in range(pieces + length - 2):
            piece = step - place
            sources = np.flatnonzero((piece >= 0) & (piece < pieces) & (place < length - 1))
            move = Move(
                frame=frame,
                way=way,
                sources=sources,
                targets=frame.neighbour(way)[sources],
                start=piece[sources],
                units=1,
            )
            rounds.append((move,))
        owner = np.zeros(length, dtype=np.int64)
        unit_bytes = whole / len(ways) / pieces
        lanes.append(
            Lane(
                rounds=tuple(rounds),
                units=pieces,
                unit_bytes=unit_bytes,
                owner=owner,
                block=pieces,
            )
        )
    return tuple(lanes)
