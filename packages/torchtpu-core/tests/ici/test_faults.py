# SPDX-License-Identifier: Apache-2.0
"""Faults: what is routed around, what gets slower, what is impossible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import DeviceIndexError, FaultError
from torchtpu_core.ici import (
    CollectiveKind,
    Faults,
    Message,
    Network,
    alike,
    link_level,
    network_model,
    parse_slice,
    span_of,
    whole,
)
from torchtpu_core.ici.closed_form import ClosedForm
from torchtpu_core.ici.faults import detour, largest_whole, parse_faults
from torchtpu_core.ici.link_level import LinkLevel

MIB = 2**20
RING_KINDS = [
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.BROADCAST,
]
KINDS = [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL]


def _network(name: str, **faults) -> Network:
    return Network.of(parse_slice(name), faults=Faults(**faults))


@pytest.mark.parametrize(
    ("name", "cable", "hops"),
    [
        ("v5e:4x4", (0, 1), 3),
        ("v5p:4x4x4", (5, 21), 3),
        ("v4:4x4x8_twisted", (0, 1), 3),
    ],
)
def test_detour_is_three_links_to_the_neighbour(name, cable, hops) -> None:
    torus = parse_slice(name).torus
    faults = Faults(cables_down=frozenset({cable}))
    (link,) = [link for link in torus.links_from(cable[0]) if link.target == cable[1]]
    way = detour(torus, faults, link)
    assert len(way) == hops
    assert (way[0].source, way[-1].target) == cable
    assert all(a.target == b.source for a, b in itertools.pairwise(way))
    assert all(faults.fraction(step) == 1.0 for step in way)


@pytest.mark.parametrize("kind", KINDS)
def test_collective_around_a_cable_that_is_down_is_slower_but_runs(kind) -> None:
    healthy, broken = _network("v5e:4x4"), _network("v5e:4x4", cables_down=frozenset({(5, 6)}))
    before, after = (
        LinkLevel(n).collective_time(kind, 16 * MIB, whole(n)).time_ps for n in (healthy, broken)
    )
    assert before < after < 4 * before


@settings(max_examples=15)
@given(st.sampled_from(["v5e:4x4", "v5p:4x4x4", "v5p:2x2x4"]), st.data(), st.sampled_from(KINDS))
def test_a_fault_is_never_faster(name, data, kind) -> None:
    torus = parse_slice(name).torus
    link = data.draw(st.sampled_from(list(torus.links())))
    left = data.draw(st.sampled_from([0.0, 0.3, 0.9]))
    cable = (link.source, link.target)
    faults = {"cables_slow": {cable: left}} if left else {"cables_down": frozenset({cable})}
    for model in (ClosedForm, LinkLevel):
        times = [
            model(n).collective_time(kind, 4 * MIB, whole(n)).time_ps
            for n in (_network(name), _network(name, **faults))
        ]
        assert times[1] >= times[0] * (1 - 1e-6)


@st.composite
def faulty(draw: st.DrawFn) -> tuple[str, Faults]:
    """A small slice with some cables and chips that are down, slow or late."""
    name = draw(st.sampled_from(["v5e:4x4", "v5p:4x4x4", "v5p:2x2x4", "v6e:8x16", "tpu7x:4x4x4"]))
    torus = parse_slice(name).torus
    cables = st.sampled_from([(link.source, link.target) for link in torus.links()])
    chips = st.integers(0, torus.chips - 1)
    left = st.sampled_from([0.2, 0.5, 0.9])
    faults = Faults(
        cables_down=frozenset(draw(st.lists(cables, max_size=1))),
        cables_slow=draw(st.dictionaries(cables, left, max_size=2)),
        chips_slow=draw(st.dictionaries(chips, left, max_size=1)),
        chips_late=draw(st.dictionaries(chips, st.sampled_from([10**6, 10**8]), max_size=1)),
    )
    return name, faults


@settings(max_examples=40)
@given(faulty(), st.sampled_from(RING_KINDS), st.sampled_from([10**4, 10**6, 10**8]))
def test_chips_that_see_the_same_are_merged_without_changing_a_result(given_, kind, size) -> None:
    name, faults = given_
    network = Network.of(parse_slice(name), faults=faults)
    job = (kind, size, whole(network))
    merged = LinkLevel(network).simulate(*job)
    every = LinkLevel(network, symmetric=False).simulate(*job)
    assert merged.end_ps == pytest.approx(every.end_ps, abs=2 * every.events, rel=1e-9)
    np.testing.assert_allclose(merged.link_bytes, every.link_bytes)


@pytest.mark.parametrize(
    ("faults", "lanes"),
    [
        ({}, 3),
        ({"cables_slow": {(0, 1): 0.5}}, 3),
        ({"cables_slow": {(21, 37): 0.5, (0, 1): 0.5}}, 6),
        ({"cables_slow": {(0, 1): 0.5, (2, 3): 0.5}}, 3),
        ({"chips_slow": {7: 0.5}, "chips_late": {7: 10**6}}, 3),
        ({"chips_slow": {7: 0.5}, "chips_late": {8: 10**6}}, 6),
        ({"cables_down": frozenset({(0, 1)})}, 3),
        ({"cables_down": frozenset({(0, 1), (21, 37)})}, 6),
    ],
)
def test_lanes_that_mirror_each_other_are_simulated_once(monkeypatch, faults, lanes) -> None:
    network = _network("tpu7x:4x4x4", **faults)
    job = (CollectiveKind.ALL_REDUCE, 10**7, whole(network))
    every = LinkLevel(network, symmetric=False).simulate(*job)
    simulated = []

    def counted(fluid):
        simulated.append(len(fluid.lanes))
        return alike.merged(fluid)

    monkeypatch.setattr(link_level, "merged", counted)
    merged = LinkLevel(network).simulate(*job)
    assert simulated == [lanes]
    assert merged.end_ps == pytest.approx(every.end_ps, abs=2 * every.events, rel=1e-9)
    assert len(merged.lane_end_ps) == len(every.lane_end_ps) == 6
    np.testing.assert_allclose(merged.link_bytes, every.link_bytes)


def test_merging_leaves_a_fraction_of_the_chips(monkeypatch) -> None:
    # A slow cable along axis 0 of 4x4x4: mirror images along every axis are alike.
    network = _network("v4:4x4x4", cables_slow={(0, 1): 0.5})
    left = []

    def counted(fluid):
        left.append(alike.merged(fluid).places)
        return alike.merged(fluid)

    monkeypatch.setattr(link_level, "merged", counted)
    LinkLevel(network).simulate(CollectiveKind.ALL_GATHER, MIB, whole(network))
    assert left == [2 * 3 * 3]


def test_ring_with_a_slow_cable_goes_at_its_rate() -> None:
    # 7.5 shards pass each way over the cable that has half its rate, eight hops in all.
    network = _network("v5e:16x16", cables_slow={(3, 4): 0.5})
    span = span_of(range(16), network)
    expected_s = 7.5 * 16 * MIB / 22.5e9
    for model in (ClosedForm(network), LinkLevel(network)):
        time = model.collective_time(CollectiveKind.ALL_GATHER, 16 * MIB, span)
        assert expected_s <= time.time_s <= expected_s * 1.05 + 8e-6


def test_chip_that_is_slow_slows_all_its_links() -> None:
    network = _network("v5e:4x4", chips_slow={5: 0.25})
    torus = network.slice_.torus
    affected = network.faults.affected(torus)
    assert {(link.source, link.target) for link in affected} == {
        pair for n in torus.neighbours(5) for pair in ((5, n), (n, 5))
    }
    assert set(affected.values()) == {0.25}


def test_straggler_holds_up_a_collective_by_the_time_it_is_late() -> None:
    late_ps = 10**9
    network = _network("v5e:4x4", chips_late={7: late_ps})
    healthy = _network("v5e:4x4")
    for model in (ClosedForm, LinkLevel):
        times = [
            model(n).collective_time(CollectiveKind.ALL_REDUCE, MIB, whole(n)).time_ps
            for n in (healthy, network)
        ]
        assert late_ps < times[1] <= times[0] + late_ps + 100


def test_messages_go_around_a_cable_that_is_down() -> None:
    network = _network("v5e:4x4", cables_down=frozenset({(0, 1)}))
    for linked in (False, True):
        model = network_model(network, link_level=linked)
        time = model.messages_time([Message(0, 1, MIB)])
        assert time.time_s == pytest.approx(MIB / 45e9 + 3e-6)


def test_cut_torus_raises_with_what_is_left() -> None:
    # Chip 0 is a corner of the mesh: two cables.
    network = _network("v5e:4x4", cables_down=frozenset({(0, 1), (0, 4)}))
    with pytest.raises(FaultError, match=r"cut the torus.*15 of 16|cut the torus.*1 of 16"):
        LinkLevel(network).collective_time(CollectiveKind.ALL_REDUCE, MIB, whole(network))
    with pytest.raises(FaultError, match="cut the torus"):
        ClosedForm(network).collective_time(CollectiveKind.ALL_REDUCE, MIB, whole(network))


@pytest.mark.parametrize("linked", [False, True])
def test_collective_with_a_chip_down_names_the_largest_slices_without_it(linked) -> None:
    network = _network("v5p:4x4x8", chips_down=frozenset({0}))
    with pytest.raises(FaultError, match=r"Chip 0 of v5p:4x4x8 is down.*v5p:4x4x4 from chip 64"):
        network_model(network, link_level=linked).collective_time(
            CollectiveKind.ALL_REDUCE, MIB, whole(network)
        )


@given(st.sets(st.integers(0, 63), min_size=1, max_size=3))
def test_largest_whole_slices_avoid_every_fault(down: set[int]) -> None:
    slice_ = parse_slice("v5e:8x8")
    for shape, first in largest_whole(slice_, Faults(chips_down=frozenset(down))):
        start = slice_.torus.coordinates(first)
        for chip in down:
            place = slice_.torus.coordinates(chip)
            assert any(not s <= p < s + n for s, p, n in zip(start, place, shape, strict=True))


def test_cable_between_chips_that_are_no_neighbours_raises() -> None:
    with pytest.raises(FaultError, match="neighbours are 1, 4"):
        _network("v5e:4x4", cables_down=frozenset({(0, 5)}))


def test_chip_of_a_slice_of_one_has_no_neighbours() -> None:
    with pytest.raises(FaultError, match=r"no cable between them\. Chip 0 has none"):
        _network("v5e:1x1", cables_down=frozenset({(0, 0)}))


def test_chip_that_is_cut_off_is_the_one_to_repair() -> None:
    torus = parse_slice("v5e:4x4").torus
    faults = parse_faults(["cable:0-1=down", "cable:0-4=down"])
    for link in torus.links_from(0):
        with pytest.raises(FaultError, match="Repair a cable of chip 0"):
            detour(torus, faults, link)


def test_chip_outside_the_torus_raises() -> None:
    with pytest.raises(DeviceIndexError, match="16 chips"):
        _network("v5e:4x4", chips_down=frozenset({16}))


def test_fraction_that_is_none_raises() -> None:
    with pytest.raises(FaultError, match="list it as down"):
        Faults(chips_slow={0: 0.0})


@pytest.mark.parametrize("text", ["cable:0=down", "chip:5", "late:7=2", "cable:0-1=half", ""])
def test_text_that_is_no_fault_says_how_to_write_one(text) -> None:
    with pytest.raises(FaultError, match="late:7=2ms"):
        parse_faults([text])


def test_faults_are_described_as_they_are_read() -> None:
    texts = ["cable:2-3=down", "cable:0-1=0.5", "chip:4=down", "chip:5=0.25", "late:7=2ms"]
    faults = parse_faults(texts)
    assert faults.described() == texts
    assert faults.chips_late == {7: 2 * 10**9}
