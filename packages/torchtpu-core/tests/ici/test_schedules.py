# SPDX-License-Identifier: Apache-2.0
"""Every schedule moves the right data, found out by running it on values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici import CollectiveKind, Span, SpanAxis, parse_slice, whole
from torchtpu_core.ici.algorithms import Algorithm
from torchtpu_core.ici.execute import execute
from torchtpu_core.ici.schedules import Schedule, ring_schedule
from torchtpu_core.ici.torus import Torus

BOTH_WAYS = Algorithm(emitter="both ways", strategy="rings", colours=3)
ONE_WAY = Algorithm(emitter="one way", strategy="rings", colours=6, unidirectional=True)
SINGLE = Algorithm(emitter="whole arrays", single_phase=True)
PIPELINE = Algorithm(emitter="pipeline", pipelined=True)


@st.composite
def spans(draw: st.DrawFn, axes: int = 3) -> Span:
    """Spans of small rings and lines."""
    lengths = draw(st.lists(st.integers(2, 5), min_size=1, max_size=axes))
    return Span(
        axes=tuple(
            SpanAxis(length=length, wrap=length > 2 and draw(st.booleans()), axis=axis)
            for axis, length in enumerate(lengths)
        )
    )


def _schedule(kind: CollectiveKind, span: Span, algorithm: Algorithm) -> Schedule:
    colours = algorithm.colours // 3 * len(span.axes) if algorithm.strategy else 1
    algorithm = dataclasses.replace(algorithm, colours=colours)
    return ring_schedule(kind, 1e6, span, algorithm, span.torus)


def _contribution(schedule: Schedule) -> np.ndarray:
    """A power of two from each position: a sum tells exactly who is in it."""
    return (
        2.0 ** np.arange(schedule.positions)
        if schedule.positions < 50
        else np.array(np.random.default_rng(0).integers(1, 2**40, schedule.positions), dtype=float)
    )


def _check(schedule: Schedule) -> None:
    given_ = _contribution(schedule)
    for lane, values in zip(schedule.lanes, execute(schedule, given_), strict=True):
        owned = lane.owner[:, None] + np.arange(lane.block)
        if schedule.kind is CollectiveKind.ALL_GATHER or schedule.algorithm.single_phase:
            # Whoever owns a unit at first, its number is there everywhere at last.
            expected = np.empty(lane.units)
            expected[owned] = given_[:, None]
            np.testing.assert_array_equal(values, np.broadcast_to(expected, values.shape))
            assert len(np.unique(owned)) == lane.units
        elif schedule.kind is CollectiveKind.REDUCE_SCATTER:
            kept = values[np.arange(schedule.positions)[:, None], owned]
            np.testing.assert_array_equal(kept, given_.sum())
            assert len(np.unique(owned)) == lane.units
        elif schedule.kind is CollectiveKind.ALL_REDUCE:
            np.testing.assert_array_equal(values, given_.sum())
        else:
            np.testing.assert_array_equal(values, given_[0])


@pytest.mark.parametrize("algorithm", [BOTH_WAYS, ONE_WAY], ids=["both ways", "one way"])
@pytest.mark.parametrize(
    "kind",
    [
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.BROADCAST,
    ],
)
@settings(max_examples=15)
@given(span=spans())
def test_ring_schedule_moves_the_right_data(kind, algorithm, span: Span) -> None:
    _check(_schedule(kind, span, algorithm))


@settings(max_examples=20)
@given(span=spans(axes=1))
def test_single_phase_all_reduce_brings_every_array_to_every_chip(span: Span) -> None:
    _check(_schedule(CollectiveKind.ALL_REDUCE, span, SINGLE))


@settings(max_examples=20)
@given(span=spans(axes=1), size=st.floats(1, 1e7))
def test_pipelined_broadcast_brings_every_piece_to_every_chip(span: Span, size) -> None:
    _check(ring_schedule(CollectiveKind.BROADCAST, size, span, PIPELINE, span.torus))


@pytest.mark.parametrize("name", ["v5p:4x4x8_twisted", "v4:4x8x8_twisted"])
@pytest.mark.parametrize("algorithm", [BOTH_WAYS, ONE_WAY], ids=["both ways", "one way"])
def test_twisted_schedule_moves_the_right_data(name, algorithm) -> None:
    slice_ = parse_slice(name)
    _check(ring_schedule(CollectiveKind.ALL_REDUCE, 1e6, whole(slice_), algorithm, slice_.torus))


def test_twisted_rings_are_those_that_the_compiler_names() -> None:
    # libtpu's compiler for v5p:4x4x8_twisted: six colours of rings {8 4 4}.
    slice_ = parse_slice("v5p:4x4x8_twisted")
    schedule = ring_schedule(CollectiveKind.ALL_GATHER, 1e6, whole(slice_), ONE_WAY, slice_.torus)
    lengths = [
        list(dict.fromkeys(move.frame.axis for moves in lane.rounds for move in moves))
        for lane in schedule.lanes
    ]
    assert [[axis.length for axis in axes[::-1]] for axes in lengths] == [[8, 4, 4]] * 6


@settings(max_examples=10)
@given(span=spans())
def test_every_move_goes_to_a_neighbour(span: Span) -> None:
    grid = span.torus
    schedule = _schedule(CollectiveKind.ALL_REDUCE, span, BOTH_WAYS)
    moves = [move for lane in schedule.lanes for moves in lane.rounds for move in moves]
    ends = {pair for move in moves for pair in zip(move.sources, move.targets, strict=True)}
    assert all(grid.hop_distance(int(a), int(b)) == 1 for a, b in ends)


def test_twisted_moves_go_over_links_of_the_torus() -> None:
    torus = parse_slice("v4:4x8x8_twisted").torus
    span = whole(parse_slice("v4:4x8x8_twisted"))
    schedule = ring_schedule(CollectiveKind.ALL_REDUCE, 1e6, span, ONE_WAY, torus)
    links = {(link.source, link.target) for link in torus.links()}
    moves = [move for lane in schedule.lanes for moves in lane.rounds for move in moves]
    assert all(
        pair in links
        for m in moves
        for pair in zip(m.sources.tolist(), m.targets.tolist(), strict=True)
    )


def test_execute_finds_a_schedule_that_sends_what_it_lacks() -> None:
    span = Span(axes=(SpanAxis(length=4, wrap=True),))
    schedule = _schedule(CollectiveKind.ALL_GATHER, span, BOTH_WAYS)
    broken = dataclasses.replace(schedule.lanes[0], rounds=schedule.lanes[0].rounds[::-1])
    values = execute(dataclasses.replace(schedule, lanes=(broken,)), np.arange(4.0))
    assert np.isnan(values[0]).any()


def test_ring_schedule_of_an_all_to_all_raises() -> None:
    with pytest.raises(TorchTPUError, match="set of messages"):
        ring_schedule(
            CollectiveKind.ALL_TO_ALL, 1.0, Span(axes=()), SINGLE, Torus(shape=(1,), wrap=(False,))
        )
