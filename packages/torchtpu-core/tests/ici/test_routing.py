# SPDX-License-Identifier: Apache-2.0
"""Routes lead from source to target over links there are; all-to-alls reach everybody."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.ici import Faults, Network, Span, parse_slice, whole
from torchtpu_core.ici.embedding import embed
from torchtpu_core.ici.fabric import Fabric, neighbour_table
from torchtpu_core.ici.lattice import shortest_ways
from torchtpu_core.ici.pairs import all_pairs
from torchtpu_core.ici.routing import routes

NAMES = ["v5e:4x4", "v5e:4x8", "v5p:4x4x4", "v5p:2x2x4", "v5p:4x4x8_twisted", "v4:4x8x8_twisted"]


def _reached(fabric: Fabric, start: int, links: list[int]) -> int:
    """Where the links of a route lead from a chip; each is taken once."""
    table, left, at = neighbour_table(fabric.torus), Counter(links), start
    for _ in links:
        (link,) = {k for k, n in left.items() if n and k // table.shape[1] == at}
        left[link] -= 1
        at = int(table[at, link % table.shape[1]])
    return at


def _check(fabric: Fabric, starts, ends, flows, links) -> None:
    by_flow = defaultdict(list)
    for flow, link in zip(flows.tolist(), links.tolist(), strict=True):
        by_flow[flow].append(link)
    for flow, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        assert _reached(fabric, start, by_flow[flow]) == end


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.data())
def test_route_leads_to_its_target_by_a_shortest_way(name, data) -> None:
    fabric = Fabric(Network.of(parse_slice(name)))
    chips = st.integers(0, fabric.torus.chips - 1)
    pairs = data.draw(st.lists(st.tuples(chips, chips), min_size=1, max_size=6))
    ends = np.array([pair for pair in pairs if pair[0] != pair[1]] or [(0, 1)])
    found = routes(fabric, ends[:, 0], ends[:, 1])
    _check(fabric, ends[:, 0], ends[:, 1], found.message, found.link)
    assert found.hops.tolist() == [fabric.torus.hop_distance(int(a), int(b)) for a, b in ends]


def test_route_around_a_cable_that_is_down_leads_to_its_target() -> None:
    faults = Faults(cables_down=frozenset({(1, 2)}))
    fabric = Fabric(Network.of(parse_slice("v5e:4x4"), faults=faults))
    found = routes(fabric, np.array([0]), np.array([3]))
    _check(fabric, np.array([0]), np.array([3]), found.message, found.link)
    assert found.hops.tolist() == [5]


@pytest.mark.parametrize("name", ["v5e:4x4", "v5p:4x4x4", "v5p:2x2x4", "v5p:4x4x8_twisted"])
def test_all_to_all_brings_every_part_to_every_chip(name) -> None:
    network = Network.of(parse_slice(name))
    span: Span = whole(network)
    chips = embed(span, network.slice_.torus)
    flows = all_pairs(Fabric(network), span, chips, 1.0, 0.0)
    pattern, sent = flows.pattern, Counter()
    for start, end, size in zip(pattern.source, pattern.target, flows.size_bytes, strict=True):
        sent[int(start), int(end)] += float(size)
    everyone = range(network.chips)
    assert set(sent) == {(a, b) for a in everyone for b in everyone if a != b}
    np.testing.assert_allclose(list(sent.values()), 1.0)
    first = slice(0, 300)
    hit = pattern.pair_flow < 300
    _check(
        Fabric(network),
        pattern.source[first],
        pattern.target[first],
        pattern.pair_flow[hit],
        pattern.pair_link[hit],
    )


@pytest.mark.parametrize("name", NAMES[2:3] + NAMES[4:])
def test_shortest_ways_are_as_long_as_the_distance(name) -> None:
    torus = parse_slice(name).torus
    ways = shortest_ways(torus)
    hops = np.abs(ways.hops).sum(axis=1)
    assert hops.tolist() == [torus.hop_distance(0, int(chip)) for chip in ways.offset]
    np.testing.assert_allclose(np.bincount(ways.offset, ways.fraction), 1.0)
