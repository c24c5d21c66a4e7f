# SPDX-License-Identifier: Apache-2.0
"""Closed forms of collectives, against step counts, routed traffic and published rows."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core.hardware import chips
from torchtpu_core.ici import IciLink, Torus, collectives

LINK = IciLink(bytes_per_s=50e9, hop_latency_s=1e-6)
FREE_HOPS = IciLink(bytes_per_s=50e9, hop_latency_s=0.0)
MIB = 2**20


def _ring(length: int) -> Torus:
    return Torus(shape=(length,), wrap=(length > 2,))


def _line(length: int) -> Torus:
    return Torus(shape=(length,), wrap=(False,))


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    """Tori of more than one chip."""
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    wrap = tuple(length >= 3 and draw(st.booleans()) for length in shape)
    return Torus(shape=shape, wrap=wrap)


@pytest.mark.parametrize("length", [3, 5, 9])
def test_all_gather_on_an_odd_ring_is_the_sum_of_its_steps(length) -> None:
    # Both ways round: each of (N-1)/2 steps moves one shard over every link.
    steps = (length - 1) // 2
    step_s = MIB / 50e9 + 1e-6
    assert collectives.all_gather_s(length * MIB, _ring(length), LINK) == pytest.approx(
        steps * step_s
    )


@pytest.mark.parametrize("length", [2, 4, 7])
def test_all_gather_on_a_line_is_the_sum_of_its_steps(length) -> None:
    # The end of a line takes in the N-1 other shards over its only link.
    expected_s = (length - 1) * (MIB / 50e9 + 1e-6)
    assert collectives.all_gather_s(length * MIB, _line(length), LINK) == pytest.approx(expected_s)


def test_all_gather_on_a_large_ring_approaches_the_book() -> None:
    # Scaling book: T = V / W with W counting both directions.
    expected_s = 2**30 / (2 * 50e9)
    measured_s = collectives.all_gather_s(2**30, _ring(256), FREE_HOPS)
    assert measured_s == pytest.approx(expected_s, rel=0.01)


def test_all_gather_of_the_book_example_takes_560_us() -> None:
    # Scaling book: bf16[2048, 8192] over four v5e chips in a line, predicted 560 us.
    link = IciLink.of(chips().get("v5e"))
    predicted_s = collectives.all_gather_s(2048 * 8192 * 2, _line(4), link)
    assert predicted_s == pytest.approx(560e-6, rel=0.02)


@given(tori(), st.integers(1, 2**32))
def test_all_reduce_is_reduce_scatter_and_all_gather(torus: Torus, size: int) -> None:
    parts_s = collectives.reduce_scatter_s(size, torus, LINK) + collectives.all_gather_s(
        size, torus, LINK
    )
    assert collectives.all_reduce_s(size, torus, LINK) == pytest.approx(parts_s)


def test_all_reduce_on_a_wrapped_cube_uses_six_links() -> None:
    # Six colours, each a reduce-scatter and an all-gather of a sixth of the array.
    cube = Torus(shape=(4, 4, 4), wrap=(True, True, True))
    expected_s = 2 * (2**30 / 6) * (63 / 64) / 50e9
    assert collectives.all_reduce_s(2**30, cube, FREE_HOPS) == pytest.approx(expected_s)


def _most_loaded_link_bytes(torus: Torus, total_bytes: float) -> float:
    """Bytes on the busiest link of an all-to-all on one axis, ties split both ways."""
    length = torus.shape[0]
    part = total_bytes / length**2
    load: Counter[tuple[int, int]] = Counter()
    for source in range(length):
        for target in range(length):
            ways = _ways(torus, source, target)
            for way in ways:
                for link in way:
                    load[link] += part / len(ways)
    return max(load.values())


def _ways(torus: Torus, source: int, target: int) -> list[list[tuple[int, int]]]:
    """The shortest ways on one axis, as lists of links: two if they are equally long."""
    length, hops = torus.shape[0], torus.hop_distance(source, target)
    ways = []
    for step in (1, -1):
        places = [source + step * hop for hop in range(hops + 1)]
        inside = all(0 <= place < length for place in places)
        if (inside or torus.wrap[0]) and places[-1] % length == target and hops:
            ways.append([(a % length, b % length) for a, b in itertools.pairwise(places)])
    return ways


@pytest.mark.parametrize("torus", [_ring(4), _ring(6), _ring(8), _line(2), _line(4), _line(6)])
def test_all_to_all_on_one_axis_is_its_busiest_link(torus) -> None:
    expected_s = _most_loaded_link_bytes(torus, 2**20) / 50e9
    assert collectives.all_to_all_s(2**20, torus, FREE_HOPS) == pytest.approx(expected_s)


def test_all_to_all_on_a_ring_is_the_book_form() -> None:
    # Scaling book: T = V / (4 W) with W counting both directions.
    expected_s = 2**30 / (4 * 2 * 50e9)
    assert collectives.all_to_all_s(2**30, _ring(16), FREE_HOPS) == pytest.approx(expected_s)


def test_all_to_all_on_a_torus_is_bound_by_its_longest_axis() -> None:
    # Half of the bytes of each half cross 2 x 4 x 4 links in the middle of the axis of 8.
    torus = Torus(shape=(4, 4, 8), wrap=(True, True, True))
    expected_s = 2**30 / 4 / (2 * 4 * 4) / 50e9
    assert collectives.all_to_all_s(2**30, torus, FREE_HOPS) == pytest.approx(expected_s)


@pytest.mark.parametrize("hops", [1, 3])
def test_permute_pays_for_every_hop(hops) -> None:
    assert collectives.permute_s(MIB, hops, LINK) == pytest.approx(hops * (MIB / 50e9 + 1e-6))


def test_broadcast_on_a_line_is_the_array_over_one_link() -> None:
    expected_s = MIB / 50e9 + 3e-6
    assert collectives.broadcast_s(MIB, _line(4), LINK) == pytest.approx(expected_s)


@given(tori(), st.integers(1, 2**32))
def test_no_collective_beats_the_latency_of_the_diameter(torus: Torus, size: int) -> None:
    floor_s = torus.diameter * LINK.hop_latency_s
    for collective in (
        collectives.all_gather_s,
        collectives.all_to_all_s,
        collectives.broadcast_s,
    ):
        assert collective(size, torus, LINK) > floor_s


@pytest.mark.parametrize(
    "collective",
    [
        collectives.all_gather_s,
        collectives.reduce_scatter_s,
        collectives.all_reduce_s,
        collectives.all_to_all_s,
        collectives.broadcast_s,
    ],
)
def test_collective_of_one_chip_takes_no_time(collective) -> None:
    assert collective(MIB, _line(1), LINK) == 0.0


def test_link_of_a_chip_runs_at_the_achievable_rate() -> None:
    # 50 GB/s on the data sheet; the scaling book reaches 45.
    assert IciLink.of(chips().get("v5e")).bytes_per_s == pytest.approx(45e9)
