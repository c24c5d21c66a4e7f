# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates, by the property that defines them and by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core.ici.max_min import max_min_rates, single_link_rates


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, list[list[int]], list[float]]:
    """Capacities, the links of each flow, and its weight."""
    capacity = draw(st.lists(st.floats(0.5, 100), min_size=1, max_size=6))
    links = st.lists(st.sampled_from(range(len(capacity))), min_size=1, max_size=4, unique=True)
    flows = draw(st.lists(links, min_size=1, max_size=8))
    weights = draw(st.lists(st.integers(1, 3), min_size=len(flows), max_size=len(flows)))
    return np.array(capacity), flows, [float(w) for w in weights]


def _rates(capacity: np.ndarray, flows: list[list[int]], weights: list[float]) -> np.ndarray:
    pairs = [(f, link, weights[f]) for f, links in enumerate(flows) for link in links]
    flow, link, weight = (np.array(column) for column in zip(*pairs, strict=True))
    return max_min_rates(capacity, flow, link, weight.astype(float), len(flows))


@given(problems())
def test_max_min_rates_give_every_flow_a_bottleneck(problem) -> None:
    # Bertsekas and Gallager: rates are max-min fair if and only if every flow crosses a full
    # link on which no flow is faster.
    capacity, flows, weights = problem
    rates = _rates(capacity, flows, weights)
    used = np.zeros(len(capacity))
    for flow, links in enumerate(flows):
        used[links] += weights[flow] * rates[flow]
    assert (used <= capacity * (1 + 1e-9)).all()
    for flow, links in enumerate(flows):
        full = [link for link in links if used[link] >= capacity[link] * (1 - 1e-9)]
        fastest = [max(rates[f] for f, other in enumerate(flows) if k in other) for k in full]
        assert any(rates[flow] >= rate * (1 - 1e-9) for rate in fastest)


def test_max_min_rates_of_the_textbook_line() -> None:
    # One flow over both links of capacity 10 and 4; one on each link: 2, 8, 2.
    rates = _rates(np.array([10.0, 4.0]), [[0, 1], [0], [1]], [1.0, 1.0, 1.0])
    np.testing.assert_allclose(rates, [2.0, 8.0, 2.0])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_single_link_rates_are_the_general_ones(links) -> None:
    capacity, link = np.array([1.0, 2.0, 5.0, 7.0]), np.array(links)
    weight = np.ones(len(links))
    general = max_min_rates(capacity, np.arange(len(links)), link, weight, len(links))
    np.testing.assert_allclose(single_link_rates(capacity, link, weight), general)
