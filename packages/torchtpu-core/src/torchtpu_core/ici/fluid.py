# SPDX-License-Identifier: Apache-2.0
"""A fluid simulation of flows on links: max-min fair rates, a latency per flow.

Flows of a lane come in rounds. A place (a chip) starts its flows of a round when it has
sent and received all of its earlier ones: sent when the last byte has left, received when
it has arrived, `latency` later. Between events all rates are constant. Time is in integer
picoseconds: a flow ends at the first whole picosecond at which its bytes are through.

Takes arrays and returns records: no clock, no randomness. The events are followed by
`csrc/fluid`, which solves rates again only on links that an event reaches. Not modelled:
packets, headers, flow control, buffers that fill up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from torchtpu_core import _fluid
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.fabric import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowPattern:
    """Who sends to whom over which links. A flow may stand for several that see the same.

    Attributes:
        source: `[n]`, place that sends.
        latency_ps: `[n]`, from the last byte sent to the last received.
        target_flow: `[T]`, number of a flow, in ascending order,
        target: `[T]`, and a place that receives it.
        pair_flow: `[H]`, number of a flow, in ascending order,
        pair_link: `[H]`, a link that it crosses,
        pair_weight: `[H]`, and how many times.
    """

    source: Ints
    latency_ps: Ints
    target_flow: Ints
    target: Ints
    pair_flow: Ints
    pair_link: Ints
    pair_weight: Floats

    @classmethod
    def of(
        cls, source: Ints, target: Ints, latency_ps: Ints, flow: Ints, link: Ints, weight: Floats
    ) -> FlowPattern:
        """Flows `[n]` with a target each, and their crossings `[H]` in any order."""
        order = np.argsort(flow, kind="stable")
        return cls(
            source=source,
            latency_ps=latency_ps,
            target_flow=np.arange(len(source)),
            target=target,
            pair_flow=flow[order],
            pair_link=link[order],
            pair_weight=weight[order],
        )

    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Floats]:
        """The columns as the compiled part takes them."""
        targets, pairs = (self.target_flow, self.target), (self.pair_flow, self.pair_link)
        return self.source, self.latency_ps, *targets, *pairs, self.pair_weight


@dataclass(frozen=True, slots=True, eq=False)
class FlowRound:
    """Flows that a lane starts in one round.

    Attributes:
        pattern: where they go; rounds that differ in sizes only have the same object.
        size_bytes: `[n]`.
    """

    pattern: FlowPattern
    size_bytes: Floats


_T = TypeVar("_T")
Lanes = Sequence[Sequence[FlowRound]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidResult:
    """What came of a simulation.

    Attributes:
        end_ps: when the last byte arrived.
        lane_end_ps: the same for each lane.
        link_bytes: `[links]`, bytes that crossed each link.
        events: points in time at which something changed.
        shared: whether any two flows ever shared a link.
    """

    end_ps: int
    lane_end_ps: tuple[int, ...]
    link_bytes: Floats
    events: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Fluid:
    """A simulation; `run` gives its result.

    Attributes:
        capacity: `[links]`, bytes per picosecond.
        lanes: rounds of each lane; rounds that are the same object are kept once.
        places: how many places there are.
        start_ps: `[places]`, when each place starts; all at zero if None.
    """

    capacity: Floats
    lanes: Lanes
    places: int
    start_ps: Ints | None = None

    def run(self) -> FluidResult:
        """Runs the simulation to its end.

        Raises:
            TorchTPUError: flows that can never end, over a link of no capacity.
        """
        rounds, number_of_round = numbered(flows for lane in self.lanes for flows in lane)
        patterns, number_of_pattern = numbered(flows.pattern for flows in rounds)
        starts = np.zeros(self.places, dtype=np.int64) if self.start_ps is None else self.start_ps
        try:
            lane_end, events, shared = _fluid.simulate(
                self.capacity,
                [pattern.columns() for pattern in patterns],
                [(number_of_pattern[id(flows.pattern)], flows.size_bytes) for flows in rounds],
                [[number_of_round[id(flows)] for flows in lane] for lane in self.lanes],
                starts,
            )
        except RuntimeError as error:
            raise TorchTPUError(str(error)) from error
        return FluidResult(
            end_ps=max(lane_end, default=0),
            lane_end_ps=tuple(lane_end),
            link_bytes=bytes_on_links(self.lanes, len(self.capacity)),
            events=events,
            shared=shared,
        )


def bytes_on_links(lanes: Lanes, links: int) -> Floats:
    """Bytes that cross each link, `[links]`, however long they take."""
    times = Counter(id(flows) for lane in lanes for flows in lane)
    total = np.zeros(links)
    for flows in numbered(flows for lane in lanes for flows in lane)[0]:
        pattern = flows.pattern
        carried = pattern.pair_weight * flows.size_bytes[pattern.pair_flow]
        total += times[id(flows)] * np.bincount(pattern.pair_link, carried, links)
    return total


def on_links(lanes: Lanes, stands_for: Ints) -> Lanes:
    """The same flows on other links: `stands_for` gives one for each, `[links]`."""
    rounds, _ = numbered(flows for lane in lanes for flows in lane)
    patterns, _ = numbered(flows.pattern for flows in rounds)
    moved = {id(p): replace(p, pair_link=stands_for[p.pair_link]) for p in patterns}
    made = {id(one): FlowRound(moved[id(one.pattern)], one.size_bytes) for one in rounds}
    return [[made[id(flows)] for flows in lane] for lane in lanes]


def numbered(items: Iterable[_T]) -> tuple[list[_T], dict[int, int]]:
    """The different objects in order, and their numbers by identity."""
    different = {id(item): item for item in items}
    return list(different.values()), {key: number for number, key in enumerate(different)}
