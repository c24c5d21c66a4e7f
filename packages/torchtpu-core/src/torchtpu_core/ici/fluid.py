# SPDX-License-Identifier: Apache-2.0
"""A fluid simulation of flows on links: max-min fair rates, a latency per flow.

Flows of a lane come in rounds. A place (a chip) starts its flows of a round when it has
sent and received all of its earlier ones: sent when the last byte has left, received when
it has arrived, `latency` later. Between events all rates are constant. Time is in integer
picoseconds: a flow ends at the first whole picosecond at which its bytes are through.

Takes arrays and returns records: no clock, no randomness. Not modelled: packets, headers,
flow control, buffers that fill up.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.fabric import Floats, Ints
from torchtpu_core.ici.max_min import max_min_rates, single_link_rates

# A flow with less than this left to do, in picoseconds, has ended.
_ROUNDING_PS = 0.5
# Instead of a round: the places begin.
_BEGIN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRound:
    """Flows that a lane starts in one round.

    Attributes:
        source: `[n]`, place that sends.
        target: `[n]`, place that receives.
        size_bytes: `[n]`.
        latency_ps: `[n]`, from the last byte sent to the last received.
        pair_flow: `[H]`, flow within the round, in ascending order,
        pair_link: `[H]`, a link that it crosses,
        pair_weight: `[H]`, and how many times.
    """

    source: Ints
    target: Ints
    size_bytes: Floats
    latency_ps: Ints
    pair_flow: Ints
    pair_link: Ints
    pair_weight: Floats


@dataclass(slots=True)
class LaneState:
    """How far the places of a lane are.

    Attributes:
        rounds: the lane.
        waiting: `[rounds + 1, places]`, flows of a round that a place still waits for.
        at: `[places]`, the round that each place is in.
    """

    rounds: Sequence[FlowRound]
    waiting: NDArrayInt16
    at: Ints

    @classmethod
    def of(cls, rounds: Sequence[FlowRound], places: int) -> LaneState:
        """A lane before it starts."""
        waiting = np.zeros((len(rounds) + 1, places), dtype=np.int16)
        for number, flows in enumerate(rounds):
            waiting[number] += np.bincount(flows.source, minlength=places).astype(np.int16)
            waiting[number] += np.bincount(flows.target, minlength=places).astype(np.int16)
        waiting[-1] = 1  # nothing follows the last round
        return cls(rounds, waiting, np.full(places, -1, dtype=np.int64))


@dataclass(slots=True)
class Active:
    """Flows under way, in columns."""

    lane: Ints
    round: Ints
    flow: Ints
    left: Floats
    pair_flow: Ints
    pair_link: Ints
    pair_weight: Floats


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


@dataclass(slots=True)
class Fluid:
    """A simulation; `run` gives its result.

    Attributes:
        capacity: `[links]`, bytes per picosecond.
        lanes: rounds of each lane.
        places: how many places there are.
        start_ps: `[places]`, when each place starts; all at zero if None.
        resolution_ps: events this near to each other happen together, at the last of them.
    """

    capacity: Floats
    lanes: Sequence[Sequence[FlowRound]]
    places: int
    start_ps: Ints | None = None
    resolution_ps: int = 0
    _states: list[LaneState] = field(default_factory=list)
    _arrivals: list[tuple[int, int, int, int, Ints]] = field(default_factory=list)
    _arrived: int = 0
    _new: list[tuple[int, int, Ints]] = field(default_factory=list)

    def run(self) -> FluidResult:
        """Runs the simulation to its end.

        Raises:
            TorchTPUError: flows that can never end, over a link of no capacity.
        """
        self._states = [LaneState.of(rounds, self.places) for rounds in self.lanes]
        lane_end, now, events = [0] * len(self.lanes), 0, 0
        link_bytes, shared = np.zeros(len(self.capacity)), False
        self._begin()
        active, rates, changed = _nothing(), np.zeros(0), True
        while True:
            if self._new:
                active, changed = self._joined(active, link_bytes), True
            if changed:
                rates, meets = self._rates(active)
                shared, changed = shared or meets, False
            times = []
            if len(active.left):
                with np.errstate(divide="ignore"):
                    soonest = float((active.left / rates).min())
                if not np.isfinite(soonest):
                    raise TorchTPUError("A flow crosses a link that is down, and never ends.")
                times.append(now + max(int(np.ceil(soonest - _ROUNDING_PS)), 0))
            if self._arrivals:
                times.append(self._arrivals[0][0])
            if times and self.resolution_ps:
                times = [self._last_within(min(times), now, active, rates)]
            if not times:
                break
            elapsed, now, events = min(times) - now, min(times), events + 1
            active.left -= rates * elapsed
            ended = active.left <= rates * _ROUNDING_PS
            if ended.any():
                self._sent(active, ended, now)
                active, changed = _without(active, ended), True
            self._received(now, lane_end)
        return FluidResult(
            end_ps=max(lane_end, default=0),
            lane_end_ps=tuple(lane_end),
            link_bytes=link_bytes,
            events=events,
            shared=shared,
        )

    def _last_within(self, first: int, now: int, active: Active, rates: Floats) -> int:
        """The last event that is not later than the resolution after the first."""
        end = first + self.resolution_ps
        ends = now + active.left / rates
        ends = ends[ends <= end]
        latest = int(np.ceil(ends.max() - _ROUNDING_PS)) if len(ends) else first
        arrivals = [entry[0] for entry in self._arrivals if entry[0] <= end]
        return max(first, latest, max(arrivals, default=first))

    def _begin(self) -> None:
        starts = np.zeros(self.places, dtype=np.int64) if self.start_ps is None else self.start_ps
        for lane in range(len(self.lanes)):
            for start in np.unique(starts):
                places = np.flatnonzero(starts == start)
                self._arrive(int(start), lane, _BEGIN, places)

    def _arrive(self, time_ps: int, lane: int, number: int, flows: Ints) -> None:
        self._arrived += 1
        heapq.heappush(self._arrivals, (time_ps, self._arrived, lane, number, flows))

    def _joined(self, active: Active, link_bytes: Floats) -> Active:
        """The active flows with those that start now."""
        parts = [active]
        base = len(active.left)
        for lane, number, flows in self._new:
            rounds = self.lanes[lane][number]
            low = np.searchsorted(rounds.pair_flow, flows)
            counts = np.searchsorted(rounds.pair_flow, flows, side="right") - low
            pairs = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            links, weight = rounds.pair_link[pairs], rounds.pair_weight[pairs]
            sizes = rounds.size_bytes[flows]
            of_pair = np.repeat(np.arange(len(flows)), counts)
            link_bytes += np.bincount(links, weight * sizes[of_pair], len(link_bytes))
            parts.append(
                Active(
                    lane=np.full(len(flows), lane),
                    round=np.full(len(flows), number),
                    flow=flows,
                    left=sizes.copy(),
                    pair_flow=of_pair + base,
                    pair_link=links,
                    pair_weight=weight,
                )
            )
            base += len(flows)
        self._new.clear()
        columns = Active.__dataclass_fields__
        return Active(**{c: np.concatenate([getattr(p, c) for p in parts]) for c in columns})

    def _rates(self, active: Active) -> tuple[Floats, bool]:
        """Rates, and whether any link has several flows."""
        count = len(active.left)
        if not count:
            return np.zeros(0), False
        crossings = np.bincount(active.pair_link, weights=active.pair_weight)
        meets = bool(crossings.max(initial=0.0) > 1)
        if len(active.pair_flow) == count:
            rates = single_link_rates(self.capacity, active.pair_link, active.pair_weight)
        else:
            rates = max_min_rates(
                self.capacity, active.pair_flow, active.pair_link, active.pair_weight, count
            )
        return rates, meets

    def _sent(self, active: Active, ended: NDArrayBool, now: int) -> None:
        lanes, rounds, flows = active.lane[ended], active.round[ended], active.flow[ended]
        longest = max(map(len, self.lanes))
        keys = np.flatnonzero(np.bincount(lanes * longest + rounds))
        for lane, number in (divmod(key, longest) for key in keys.tolist()):
            mine = flows[(lanes == lane) & (rounds == number)]
            this = self.lanes[lane][number]
            delays = this.latency_ps[mine]
            for delay in _different(delays):
                self._arrive(now + delay, lane, number, mine[delays == delay])
            self._fewer(lane, number, this.source[mine])

    def _received(self, now: int, lane_end: list[int]) -> None:
        while self._arrivals and self._arrivals[0][0] <= now:
            _, _, lane, number, flows = heapq.heappop(self._arrivals)
            if number == _BEGIN:
                self._advance(lane, flows)
                continue
            lane_end[lane] = now
            self._fewer(lane, number, self.lanes[lane][number].target[flows])

    def _fewer(self, lane: int, number: int, places: Ints) -> None:
        """A flow of each of these places is done; they go on where it was the last."""
        waiting = self._states[lane].waiting[number]
        done = np.bincount(places, minlength=self.places)
        waiting -= done.astype(np.int16)
        self._advance(lane, np.flatnonzero((done > 0) & (waiting == 0)), number)

    def _advance(self, lane: int, places: Ints, number: int | None = None) -> None:
        """Places leave the round they are in, and start their flows of the next ones."""
        state = self._states[lane]
        if number is not None:
            places = places[state.at[places] == number]
        while len(places):
            state.at[places] += 1
            at = state.at[places]
            for reached in _different(at[at < len(state.rounds)]):
                starts = np.zeros(self.places, dtype=bool)
                starts[places[at == reached]] = True
                flows = np.flatnonzero(starts[state.rounds[reached].source])
                if len(flows):
                    self._new.append((lane, reached, flows))
            places = places[state.waiting[at, places] == 0]


NDArrayInt16 = np.ndarray[tuple[int, int], np.dtype[np.int16]]
NDArrayBool = np.ndarray[tuple[int], np.dtype[np.bool_]]


def _different(values: Ints) -> list[int]:
    """The different values; most often there is one."""
    if not len(values) or values.min() == values.max():
        return values[:1].tolist()
    found: list[int] = np.unique(values).tolist()
    return found


def _nothing() -> Active:
    none = np.zeros(0, dtype=np.int64)
    return Active(none, none, none, np.zeros(0), none, none, np.zeros(0))


def _without(active: Active, ended: NDArrayBool) -> Active:
    kept = ~ended
    pairs = kept[active.pair_flow]
    renumbered = np.cumsum(kept) - 1
    return Active(
        lane=active.lane[kept],
        round=active.round[kept],
        flow=active.flow[kept],
        left=active.left[kept],
        pair_flow=renumbered[active.pair_flow[pairs]],
        pair_link=active.pair_link[pairs],
        pair_weight=active.pair_weight[pairs],
    )
