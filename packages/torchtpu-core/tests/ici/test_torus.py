# SPDX-License-Identifier: Apache-2.0
"""Geometry of the torus, against breadth-first search and counting."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import DeviceIndexError, MeshShapeError
from torchtpu_core.hardware import chips
from torchtpu_core.ici import Torus
from torchtpu_core.ici.slices import twist_of


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    """Tori of one to three short axes, each wrapped or not."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    wrap = tuple(length >= 3 and draw(st.booleans()) for length in shape)
    return Torus(shape=shape, wrap=wrap)


def _distances(torus: Torus, source: int) -> dict[int, int]:
    """Hops from one chip to every other, by breadth-first search over the links."""
    found = {source: 0}
    waiting = deque([source])
    while waiting:
        chip = waiting.popleft()
        for neighbour in torus.neighbours(chip):
            if neighbour not in found:
                found[neighbour] = found[chip] + 1
                waiting.append(neighbour)
    return found


@given(tori())
def test_chip_at_inverts_coordinates(torus: Torus) -> None:
    positions = [torus.coordinates(chip) for chip in range(torus.chips)]
    assert [torus.chip_at(position) for position in positions] == list(range(torus.chips))
    assert len(set(positions)) == torus.chips


@given(tori())
def test_hop_distance_is_the_shortest_path_over_links(torus: Torus) -> None:
    distances = _distances(torus, 0)
    assert distances == {chip: torus.hop_distance(0, chip) for chip in range(torus.chips)}


@pytest.mark.parametrize("source", [0, 1, 77, 100])
@pytest.mark.parametrize("shape", [(4, 4, 8), (4, 8, 8)])
def test_hop_distance_on_a_twisted_torus_is_the_shortest_path(shape, source) -> None:
    torus = Torus(shape=shape, wrap=(True,) * 3, twist=twist_of(chips().get("v5p"), shape))
    distances = _distances(torus, source)
    assert distances == {chip: torus.hop_distance(source, chip) for chip in range(torus.chips)}
    assert torus.diameter == max(distances.values())


@settings(max_examples=25)
@given(tori())
def test_diameter_is_the_largest_shortest_path(torus: Torus) -> None:
    farthest = max(max(_distances(torus, chip).values()) for chip in range(torus.chips))
    assert torus.diameter == farthest


@given(tori())
def test_links_come_in_both_directions_once(torus: Torus) -> None:
    links = [(link.source, link.target) for link in torus.links()]
    assert len(set(links)) == len(links)
    assert {(target, source) for source, target in links} == set(links)


@given(tori())
def test_fewest_links_is_the_smallest_degree(torus: Torus) -> None:
    degrees = [len(torus.neighbours(chip)) for chip in range(torus.chips)]
    assert torus.fewest_links == min(degrees)


@given(tori())
def test_cut_links_counts_links_between_halves(torus: Torus) -> None:
    for axis in torus.axes:
        length = torus.shape[axis]
        if length == 1:
            continue

        def low(chip: int, axis: int = axis, length: int = length) -> bool:
            return torus.coordinates(chip)[axis] < length // 2

        crossing = [link for link in torus.links() if low(link.source) > low(link.target)]
        assert torus.cut_links(axis) == len(crossing)


@given(tori(), st.data())
def test_hop_distance_is_a_metric(torus: Torus, data: st.DataObject) -> None:
    chips = st.integers(0, torus.chips - 1)
    a, b, c = data.draw(chips), data.draw(chips), data.draw(chips)
    assert torus.hop_distance(a, b) == torus.hop_distance(b, a)
    assert torus.hop_distance(a, c) <= torus.hop_distance(a, b) + torus.hop_distance(b, c)


def test_first_axis_runs_fastest() -> None:
    torus = Torus(shape=(2, 4), wrap=(False, False))
    assert [torus.coordinates(chip) for chip in (0, 1, 2)] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize(
    ("shape", "wrap", "message"),
    [
        ((2, 4), (True, False), "cannot wrap"),
        ((4,), (True, True), "one wrap flag per axis"),
        ((0, 4), (False, False), "at least one chip"),
    ],
)
def test_impossible_torus_raises(shape, wrap, message) -> None:
    with pytest.raises(MeshShapeError, match=message):
        Torus(shape=shape, wrap=wrap)


def test_chip_outside_the_torus_raises() -> None:
    torus = Torus(shape=(2, 2), wrap=(False, False))
    with pytest.raises(DeviceIndexError, match="4 chips"):
        torus.coordinates(4)
    with pytest.raises(DeviceIndexError, match="outside"):
        torus.chip_at((0, 2))
