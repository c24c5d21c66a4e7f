# SPDX-License-Identifier: Apache-2.0
"""The fluid simulation against its plainest form, and by hand.

The oracle follows every flow, on one clock, and solves all rates anew at every event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.alike import merged
from torchtpu_core.ici.fluid import FlowPattern, FlowRound, Fluid

PLACES, LINKS = 4, 5
Crossings = dict[int, float]


def max_min(capacity: Sequence[float], flows: Sequence[Crossings]) -> list[float]:
    """Max-min fair rates of flows that cross links so many times, by progressive filling."""
    rates: list[float | None] = [None] * len(flows)
    left = list(capacity)
    while None in rates:
        unfixed = [i for i, rate in enumerate(rates) if rate is None]
        demand = {k: sum(flows[i].get(k, 0.0) for i in unfixed) for i in unfixed for k in flows[i]}
        tightest = min((k for k in demand if demand[k]), key=lambda k: left[k] / demand[k])
        rate = max(left[tightest], 0.0) / demand[tightest]
        for i in unfixed:
            if tightest in flows[i]:
                rates[i] = rate
                for link, times in flows[i].items():
                    left[link] -= rate * times
    return [rate for rate in rates if rate is not None]


def lane_ends(
    capacity: Sequence[float],
    lanes: Sequence[Sequence[FlowRound]],
    places: int,
    starts: Sequence[int],
) -> list[int]:
    """When the last byte of each lane arrives; rounds whose flows have one target each."""
    flows = [[_flows(one) for one in lane] for lane in lanes]
    missing = {
        (lane, number, place): sum(place in flow[:2] for flow in one)
        + sum(flow[0] == flow[1] == place for flow in one)
        for lane, rounds in enumerate(flows)
        for number, one in enumerate(rounds)
        for place in range(places)
    }
    at = {(lane, place): -1 for lane in range(len(lanes)) for place in range(places)}
    begins = [(starts[place], lane, place) for lane, place in at]
    active: list[list] = []  # lane, number, flow, left
    arriving: list[tuple[int, int, int, int]] = []
    ends, now = [0] * len(lanes), 0

    def advance(lane: int, place: int) -> None:
        while True:
            at[lane, place] += 1
            number = at[lane, place]
            if number == len(flows[lane]):
                return
            active.extend([lane, number, f, f[2]] for f in flows[lane][number] if f[0] == place)
            if missing[lane, number, place]:
                return

    def one_less(lane: int, number: int, place: int) -> None:
        missing[lane, number, place] -= 1
        if not missing[lane, number, place] and at[lane, place] == number:
            advance(lane, place)

    while active or arriving or begins:
        rates = max_min(capacity, [flow[4] for _, _, flow, _ in active])
        over = [
            now + max(math.ceil(left / rate - 0.5), 0)
            for (*_, left), rate in zip(active, rates, strict=True)
        ]
        soonest = [t for t, *_ in begins] + [t for t, *_ in arriving]
        then = min(over + soonest)
        for one, rate in zip(active, rates, strict=True):
            one[3] -= rate * (then - now)
        now = then
        sent = [one for one, end in zip(active, over, strict=True) if end <= now]
        active = [one for one, end in zip(active, over, strict=True) if end > now]
        for lane, number, flow, _ in sent:
            arriving.append((now + flow[3], lane, number, flow[1]))
            one_less(lane, number, flow[0])
        begun, begins = [b for b in begins if b[0] <= now], [b for b in begins if b[0] > now]
        for _, lane, place in begun:
            advance(lane, place)
        while landed := [a for a in arriving if a[0] <= now]:
            arriving = [a for a in arriving if a[0] > now]
            for _, lane, number, place in landed:
                ends[lane] = now
                one_less(lane, number, place)
    return ends


def _flows(one: FlowRound) -> list[tuple[int, int, float, int, Crossings]]:
    pattern = one.pattern
    crossings: list[Crossings] = [{} for _ in pattern.source]
    columns = pattern.pair_flow, pattern.pair_link, pattern.pair_weight
    for flow, link, times in zip(*map(list, columns), strict=True):
        crossings[flow][link] = crossings[flow].get(link, 0.0) + times
    ends = pattern.source, pattern.target, one.size_bytes, pattern.latency_ps
    return list(zip(*map(list, ends), crossings, strict=True))


@st.composite
def rounds(draw: st.DrawFn) -> FlowRound:
    """Some flows between few places, over one or several links."""
    count = draw(st.integers(0, 4))
    numbers = st.integers(0, PLACES - 1)
    ends = [(draw(numbers), draw(numbers), draw(st.sampled_from([0, 7, 40]))) for _ in range(count)]
    links = st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=3, unique=True)
    pairs = [
        (f, link, float(draw(st.integers(1, 2)))) for f in range(count) for link in draw(links)
    ]
    source, target, latency = np.array(ends, dtype=np.int64).reshape(-1, 3).T
    flow, link, weight = np.array(pairs, dtype=float).reshape(-1, 3).T
    sizes = np.array([draw(st.sampled_from([50.0, 300.0, 301.0])) for _ in range(count)])
    pattern = FlowPattern.of(
        source, target, latency, flow.astype(np.int64), link.astype(np.int64), weight
    )
    return FlowRound(pattern, sizes)


def _alone(capacity: list[float], flows: list[dict[int, float]], size: float) -> Fluid:
    """Flows of one size from places of their own, which start together."""
    pairs = [(f, link, times) for f, used in enumerate(flows) for link, times in used.items()]
    flow, link, weight = (np.array(column) for column in zip(*pairs, strict=True))
    own, none = np.arange(len(flows)), np.zeros(len(flows), dtype=np.int64)
    pattern = FlowPattern.of(own, own, none, flow, link, weight.astype(float))
    return Fluid(np.array(capacity), [[FlowRound(pattern, np.full(len(flows), size))]], len(flows))


@settings(max_examples=150)
@given(
    st.lists(st.lists(rounds(), min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=LINKS, max_size=LINKS),
    st.lists(st.sampled_from([0, 90]), min_size=PLACES, max_size=PLACES),
    st.booleans(),
)
def test_simulation_agrees_with_one_that_follows_every_flow(lanes, capacity, starts, merge) -> None:
    fluid = Fluid(np.array(capacity), lanes, PLACES, np.array(starts))
    expected = lane_ends(capacity, lanes, PLACES, starts)
    # A flow that ends half a picosecond earlier may let another one share or not.
    result = (merged(fluid) if merge else fluid).run()
    assert result.lane_end_ps == pytest.approx(expected, abs=2 * result.events)


@given(
    st.lists(st.floats(0.5, 100), min_size=1, max_size=6).flatmap(
        lambda capacity: st.tuples(
            st.just(capacity),
            st.lists(
                st.dictionaries(
                    st.integers(0, len(capacity) - 1), st.sampled_from([1.0, 2.0, 3.0]), min_size=1
                ),
                min_size=1,
                max_size=8,
            ),
        )
    )
)
def test_rates_of_the_oracle_give_every_flow_a_bottleneck(problem) -> None:
    # Bertsekas and Gallager: rates are max-min fair if and only if every flow crosses a full
    # link on which no flow is faster.
    capacity, flows = problem
    rates = max_min(capacity, flows)
    used = [sum(r * f.get(k, 0.0) for r, f in zip(rates, flows, strict=True)) for k in range(6)]
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacity, strict=False))
    for flow, rate in zip(flows, rates, strict=True):
        full = [k for k in flow if used[k] >= capacity[k] * (1 - 1e-9)]
        fastest = [max(r for r, f in zip(rates, flows, strict=True) if k in f) for k in full]
        assert any(rate >= other * (1 - 1e-9) for other in fastest)


def test_flows_of_the_textbook_line_end_at_its_fair_rates() -> None:
    # One flow over links of 10 and 4 bytes a picosecond, one more on each: rates 2, 8 and 2.
    # The fast one ends at 1000 ps; the others keep the rate of the link that they share.
    fluid = _alone([10.0, 4.0], [{0: 1, 1: 1}, {0: 1}, {1: 1}], 8000.0)
    result = fluid.run()
    assert result.end_ps == 4000
    assert result.shared
    np.testing.assert_allclose(result.link_bytes, [16000, 16000])


def test_flows_that_see_the_same_are_one() -> None:
    # Three flows on links of their own, all alike, and one on a slower link.
    fluid = _alone([4.0, 4.0, 4.0, 1.0], [{0: 1}, {1: 1}, {2: 1}, {3: 1}], 100.0)
    small = merged(fluid)
    assert small.places == 2
    assert [len(flows.size_bytes) for lane in small.lanes for flows in lane] == [2]
    assert small.run().end_ps == fluid.run().end_ps == 100


def test_flow_over_a_link_without_capacity_raises() -> None:
    with pytest.raises(TorchTPUError, match="never ends"):
        _alone([1.0, 0.0], [{0: 1}, {1: 1}], 10.0).run()
