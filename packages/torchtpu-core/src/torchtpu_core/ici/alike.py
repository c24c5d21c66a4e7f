# SPDX-License-Identifier: Apache-2.0
"""Places, links and flows that see the same, merged: a smaller simulation with equal results.

Colours are refined until nothing tells apart what has the same one: a place by its start and
by the flows that it sends and receives, a link by its capacity and the flows that cross it, a
flow by its sizes, its source and its links. Max-min fair rates are unique, so what has the
same colour has the same history; one of each stands for all, and crosses a link as often as
they do. A torus without faults becomes one place, one with a broken cable a fraction of its
chips, one with many faults stays as it is.

Colours are 64-bit hashes: two that differ are taken for the same with a chance of about one in
10^9 for 100,000 of them.
Reference: Paige and Tarjan, Three Partition Refinement Algorithms, SIAM J. Comput. 16, 1987.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtpu_core.ici.fabric import Floats, Ints
from torchtpu_core.ici.fluid import FlowPattern, FlowRound, Fluid, numbered

Colours = NDArray[np.uint64]

#: Refinements between two looks at the number of colours.
STRIDE = 4


@dataclass(slots=True)
class _Flows:
    """All flows of one pattern, with what is known of them from the start."""

    pattern: FlowPattern
    given: Colours


def merged(fluid: Fluid) -> Fluid:
    """The same simulation with one place, link and flow for all that see the same."""
    rounds, _ = numbered(flows for lane in fluid.lanes for flows in lane)
    patterns, number_of = numbered(flows.pattern for flows in rounds)
    flows = [
        _Flows(pattern, _mixed(_bits(pattern.latency_ps) + np.uint64(number)))
        for number, pattern in enumerate(patterns)
    ]
    for number, one in enumerate(rounds):
        mine = flows[number_of[id(one.pattern)]]
        mine.given = _mixed(mine.given + _mixed(_bits(one.size_bytes) + np.uint64(number)))
    starts = np.zeros(fluid.places, np.int64) if fluid.start_ps is None else fluid.start_ps
    place, link = _refined(flows, _mixed(_bits(starts)), _mixed(_bits(fluid.capacity)))
    chosen, place_of = np.unique(place, return_index=True, return_inverse=True)[1:]
    first_link, link_of, alike = np.unique(
        link, return_index=True, return_inverse=True, return_counts=True
    )[1:]
    made, kept = {}, {}
    for each in flows:
        colour = _of_flows(each, place, link)
        pattern, first = _merged_pattern(each.pattern, colour, place_of, link_of, alike)
        made[id(each.pattern)], kept[id(each.pattern)] = pattern, first
    fewer = {
        id(one): FlowRound(made[id(one.pattern)], one.size_bytes[kept[id(one.pattern)]])
        for one in rounds
    }
    lanes = [[fewer[id(one)] for one in lane] for lane in fluid.lanes]
    return Fluid(fluid.capacity[first_link], lanes, len(chosen), starts[chosen])


def _refined(flows: Sequence[_Flows], place: Colours, link: Colours) -> tuple[Colours, Colours]:
    """Colours of places and links that no flow tells further apart."""
    of_place, of_link, count = place, link, 0
    while True:
        for _ in range(STRIDE):
            seen, crossed = np.zeros_like(place), np.zeros_like(link)
            for one in flows:
                pattern, colour = one.pattern, _of_flows(one, of_place, of_link)
                np.add.at(seen, pattern.source, _mixed(colour + np.uint64(1)))
                received = _mixed(colour + np.uint64(2))
                np.add.at(seen, pattern.target, received[pattern.target_flow])
                crossing = colour[pattern.pair_flow] + _bits(pattern.pair_weight)
                np.add.at(crossed, pattern.pair_link, _mixed(crossing))
            of_place, of_link = _mixed(place + seen), _mixed(link + crossed)
        before, count = count, len(np.unique(of_place)) + len(np.unique(of_link))
        if count == before:
            return of_place, of_link


def _of_flows(one: _Flows, place: Colours, link: Colours) -> Colours:
    pattern = one.pattern
    colour = _mixed(one.given + place[pattern.source])
    crossed = np.zeros_like(colour)
    crossing = link[pattern.pair_link] + _bits(pattern.pair_weight)
    np.add.at(crossed, pattern.pair_flow, _mixed(crossing))
    return _mixed(colour + crossed)


def _merged_pattern(
    pattern: FlowPattern, colour: Colours, place_of: Ints, link_of: Ints, alike: Ints
) -> tuple[FlowPattern, Ints]:
    """One flow per colour, and the number of the flow that it is."""
    first, flow_of = np.unique(colour, return_index=True, return_inverse=True)[1:]
    targets = np.unique(np.stack([flow_of[pattern.target_flow], place_of[pattern.target]]), axis=1)
    links = len(alike)
    pairs, which = np.unique(
        flow_of[pattern.pair_flow] * links + link_of[pattern.pair_link], return_inverse=True
    )
    flow, link = np.divmod(pairs, links)
    made = FlowPattern(
        source=place_of[pattern.source[first]],
        latency_ps=pattern.latency_ps[first],
        target_flow=targets[0],
        target=targets[1],
        pair_flow=flow,
        pair_link=link,
        pair_weight=np.bincount(which, pattern.pair_weight) / alike[link],
    )
    return made, first


def _bits(values: Ints | Floats) -> Colours:
    return np.ascontiguousarray(values).view(np.uint64)


def _mixed(values: Colours) -> Colours:
    """A hash of each value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
