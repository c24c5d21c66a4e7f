# SPDX-License-Identifier: Apache-2.0
"""Link-level network model: the explicit schedule of all groups, on links that they share.

Every piece is a flow over the links of its route; flows that meet on a link share it, max-min
fair; each hop delays the first byte. On a torus whose rings are all whole, every chip sees
the same, so the flows of all chips are one flow and the links of a direction one link, each
counted as often as it stands for: max-min fair rates are unique, so this is exact, and takes
milliseconds where single flows take seconds. `symmetric=False` keeps every flow apart.

Slices of a job are alike, so one is simulated; between slices each chip has ports of its
own, which the closed form describes exactly. Stages of a hierarchical collective follow each
other without overlap. Colours wait for nothing but their own data. With faults, events that
are near each other happen together, at the last of them, which makes a result late by up to
about 2 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.algorithms import Algorithm, choose
from torchtpu_core.ici.closed_form import ClosedForm, Stage
from torchtpu_core.ici.colours import Colour, colours_of
from torchtpu_core.ici.embedding import alike_everywhere, embed
from torchtpu_core.ici.fabric import Fabric, Floats, Ints
from torchtpu_core.ici.faults import refuse_chips_down
from torchtpu_core.ici.fluid import FlowRound, Fluid, FluidResult
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.messages import latencies_ps, routed
from torchtpu_core.ici.model import CollectiveTime, Message, array_bytes
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.pairs import all_pairs, pairs_alike
from torchtpu_core.ici.rounds import Move, gather_pattern
from torchtpu_core.ici.routing import routes, walk
from torchtpu_core.ici.schedules import Lane, ring_schedule
from torchtpu_core.ici.span import NO_AXIS, Span
from torchtpu_core.units import PS_PER_S, ps_to_seconds

MODEL = "link level"
#: Flows of an all-to-all that are simulated one by one.
MOST_PAIRS = 300_000
#: With faults, events are told apart as far as makes a schedule late by this fraction.
LATE_WITH_FAULTS = 0.02


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """The model that shows contention.

    Attributes:
        network: what collectives run on.
        symmetric: whether chips that see the same are simulated once.
    """

    network: Network
    symmetric: bool = True

    def collective_time(
        self,
        kind: CollectiveKind,
        operand_bytes: float,
        span: Span,
        *,
        offload: bool | None = None,
    ) -> CollectiveTime:
        """Simulated time of a collective; see `NetworkModel.collective_time`.

        Raises:
            TorchTPUError: an all-to-all of too many chips that do not all see the same.
        """
        closed = ClosedForm(self.network)
        refuse_chips_down(self.network.slice_, self.network.faults)
        whole = array_bytes(kind, operand_bytes, span.devices)
        if not span.axes or operand_bytes <= 0:
            return replace(
                closed.collective_time(kind, operand_bytes, span, offload=offload), model=MODEL
            )
        algorithm = choose(kind, whole, span, self.network.slice_.chip, offload)
        halves = [kind]
        if span.slices > 1 and kind is CollectiveKind.ALL_REDUCE and not algorithm.single_phase:
            # The exchange between slices comes between the two.
            halves = [CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER]
        results = [self._simulate(half, whole, span, algorithm) for half in halves]
        load = self._load_by_axis(results, span)
        inner = Stage(
            time_s=ps_to_seconds(sum(result.end_ps for result in results)),
            latency_s=closed.inner_stage(kind, whole, span, algorithm).latency_s,
            load=load,
        )
        return closed.result_of(kind, whole, span, algorithm, inner, MODEL)

    def messages_time(
        self, messages: Sequence[Message], kind: CollectiveKind = CollectiveKind.PERMUTE
    ) -> CollectiveTime:
        """Simulated time of messages that start together; see `NetworkModel.messages_time`."""
        messages = [message for message in messages if message.size_bytes > 0]
        bound = ClosedForm(self.network).messages_time(messages, kind)
        if not messages:
            return replace(bound, model=MODEL)
        fabric = Fabric(self.network)
        found, sizes = routed(fabric, messages)
        order = np.argsort(found.message, kind="stable")
        ends = np.array([(m.source, m.target) for m in messages], dtype=np.int64)
        flows = FlowRound(
            source=ends[:, 0],
            target=ends[:, 1],
            size_bytes=sizes,
            latency_ps=latencies_ps(self.network, found).astype(np.int64),
            pair_flow=found.message[order],
            pair_link=found.link[order],
            pair_weight=np.ones(len(order)),
        )
        result = Fluid(fabric.capacity(), [[flows]], self.network.devices).run()
        return replace(bound, time_ps=result.end_ps, model=MODEL)

    def together(
        self, collectives: Sequence[tuple[CollectiveKind, float, Span]]
    ) -> tuple[int, ...]:
        """Simulated time of several collectives that start together and share links.

        Args:
            collectives: kind, operand bytes and span of each; rings within a slice only.

        Returns:
            Picoseconds until each is through.

        Raises:
            TorchTPUError: one that is not made of rings.
        """
        refuse_chips_down(self.network.slice_, self.network.faults)
        torus, lanes, owner = self.network.slice_.torus, [], []
        for number, (kind, operand_bytes, span) in enumerate(collectives):
            whole = array_bytes(kind, operand_bytes, span.devices) * span.sharing
            algorithm = choose(kind, whole, span, self.network.slice_.chip)
            schedule = ring_schedule(kind, whole, span, algorithm, torus)
            chips = embed(span, torus)
            lanes += [self._lane(lane, chips) for lane in schedule.lanes]
            owner += [number] * len(schedule.lanes)
        ends = self._fluid(lanes).lane_end_ps
        return tuple(
            max(end for end, of in zip(ends, owner, strict=True) if of == number)
            for number in range(len(collectives))
        )

    def link_loads(self, kind: CollectiveKind, operand_bytes: float, span: Span) -> Floats:
        """Bytes on every ICI link of a slice, `[chips, 2 axes]`: up and down each axis.

        Zero on links that the groups do not use, and where there is none.
        """
        torus = self.network.slice_.torus
        columns = 2 * len(torus.shape)
        load = self.simulate(kind, operand_bytes, span).link_bytes
        if len(load) == columns:
            return np.tile(load, (torus.chips, 1))
        result: Floats = load[: torus.chips * columns].reshape(torus.chips, columns)
        return result

    def simulate(
        self,
        kind: CollectiveKind,
        operand_bytes: float,
        span: Span,
        *,
        offload: bool | None = None,
    ) -> FluidResult:
        """The simulation behind `collective_time` within a slice, with the bytes of each link.

        With `symmetric` on a torus whose rings are all whole, links are numbered by axis and
        direction only.
        """
        whole = array_bytes(kind, operand_bytes, span.devices)
        algorithm = choose(kind, whole, span, self.network.slice_.chip, offload)
        return self._simulate(kind, whole, span, algorithm)

    def _simulate(
        self, kind: CollectiveKind, whole: float, span: Span, algorithm: Algorithm
    ) -> FluidResult:
        alike = self._once and alike_everywhere(span)
        torus = self.network.slice_.torus
        local = whole * span.sharing
        if kind is CollectiveKind.ALL_TO_ALL:
            return self._all_to_all(local * span.cores, span)
        if alike and not algorithm.pipelined:
            if algorithm.single_phase:
                kind, local = CollectiveKind.ALL_GATHER, local * span.chips_per_slice
            lanes = [self._lane_alike(kind, local, c) for c in colours_of(algorithm, span)]
            return Fluid(self._capacity_alike(), lanes, 1).run()
        schedule = ring_schedule(kind, local, span, algorithm, torus)
        chips = embed(span, torus)
        lanes = [self._lane(lane, chips) for lane in schedule.lanes]
        return self._fluid(lanes)

    @property
    def _once(self) -> bool:
        """Whether chips may be alike: asked for, and no fault tells them apart."""
        return self.symmetric and not self.network.faults

    def _fluid(self, lanes: Sequence[Sequence[FlowRound]]) -> FluidResult:
        """The simulation of a slice, flow by flow."""
        chips, late = self.network.slice_.torus.chips, self.network.faults.chips_late
        starts = np.zeros(chips, dtype=np.int64)
        starts[list(late)] = list(late.values())
        capacity = self._slice_fabric().capacity()
        grain_ps = self._resolution_ps(lanes) if self.network.faults else 0
        return Fluid(capacity, lanes, chips, starts, grain_ps).run()

    def _resolution_ps(self, lanes: Sequence[Sequence[FlowRound]]) -> int:
        """How far apart events of a faulty slice are told apart.

        Faults make chips drift: without it, every flow would end at a time of its own.
        """
        rate = self.network.link.bytes_per_s / PS_PER_S
        alone_ps = [
            sum(r.size_bytes.max() / rate + r.latency_ps.max() for r in lane if len(r.source))
            for lane in lanes
        ]
        rounds = max(map(len, lanes), default=1)
        return int(LATE_WITH_FAULTS * max(alone_ps, default=0.0) / max(rounds, 1))

    def _slice_fabric(self) -> Fabric:
        return Fabric(replace(self.network, slices=1))

    def _capacity_alike(self) -> Floats:
        links = 2 * len(self.network.slice_.torus.shape)
        return np.full(links, self.network.link.bytes_per_s / PS_PER_S)

    def _lane_alike(self, kind: CollectiveKind, whole: float, colour: Colour) -> list[FlowRound]:
        """The rounds of one chip that stands for all."""
        hop_ps = self.network.link.hop_latency_s * PS_PER_S
        gather = gather_pattern(colour)
        scatter = [[(axis, -way, size) for axis, way, size in moves] for moves in gather[::-1]]
        patterns = {
            CollectiveKind.ALL_GATHER: gather,
            CollectiveKind.REDUCE_SCATTER: scatter,
        }.get(kind, scatter + gather)
        return [
            FlowRound(
                source=np.zeros(len(moves), dtype=np.int64),
                target=np.zeros(len(moves), dtype=np.int64),
                size_bytes=np.array([size * colour.share * whole for _, _, size in moves]),
                latency_ps=np.array([round(axis.stride * hop_ps) for axis, _, _ in moves]),
                pair_flow=np.arange(len(moves)),
                pair_link=np.array([2 * axis.axis + (way < 0) for axis, way, _ in moves]),
                pair_weight=np.array([float(axis.sharing) for axis, _, _ in moves]),
            )
            for moves in patterns
        ]

    def _lane(self, lane: Lane, chips: Ints) -> list[FlowRound]:
        """The rounds of all chips of all groups."""
        return [
            _joined([self._flows(move, lane, chips) for move in moves]) for moves in lane.rounds
        ]

    def _flows(self, move: Move, lane: Lane, chips: Ints) -> FlowRound:
        axis = move.frame.axis
        source, target = chips[:, move.sources].ravel(), chips[:, move.targets].ravel()
        fabric = self._slice_fabric()
        if axis.axis == NO_AXIS:
            cores = self.network.slice_.devices_per_chip
            found = routes(fabric, source * cores, target * cores)
            flow, link, hops = found.message, found.link, found.hops
        else:
            moved = np.zeros((len(source), len(fabric.torus.shape)), dtype=np.int64)
            moved[:, axis.axis] = move.way * axis.stride
            flow, link = walk(fabric, source, moved)
            hops = np.bincount(flow, minlength=len(source))
        order = np.argsort(flow, kind="stable")
        return FlowRound(
            source=source,
            target=target,
            size_bytes=np.full(len(source), move.units * lane.unit_bytes),
            latency_ps=np.rint(hops * self.network.link.hop_latency_s * PS_PER_S).astype(np.int64),
            pair_flow=flow[order],
            pair_link=link[order],
            pair_weight=np.ones(len(order)),
        )

    def _all_to_all(self, chip_bytes: float, span: Span) -> FluidResult:
        torus = self.network.slice_.torus
        part = chip_bytes / span.chips_per_slice
        hop_ps = self.network.link.hop_latency_s * PS_PER_S
        if self._once and (alike_everywhere(span) or span.twisted):
            flows = pairs_alike(span, torus, part, hop_ps)
            return Fluid(self._capacity_alike(), [[flows]], 1).run()
        chips = embed(span, torus)
        if chips.size * span.chips_per_slice > MOST_PAIRS:
            raise TorchTPUError(
                f"An all-to-all of {span.chips_per_slice} chips in {len(chips)} group(s) that do "
                f"not all see the same is {chips.size * span.chips_per_slice} flows; at most "
                f"{MOST_PAIRS} are simulated. Use the closed form."
            )
        flows = all_pairs(self._slice_fabric(), span, chips, part, hop_ps)
        return self._fluid([[flows]])

    def _load_by_axis(
        self, results: Sequence[FluidResult], span: Span
    ) -> dict[tuple[int, int], float]:
        """Bytes on the busiest link of each axis and direction."""
        axes = len(self.network.slice_.torus.shape)
        load: dict[tuple[int, int], float] = {}
        for result in results:
            links = len(result.link_bytes) // (2 * axes) * 2 * axes
            if len(result.link_bytes) > 2 * axes:
                links = self._slice_fabric().ici_links
            busiest = result.link_bytes[:links].reshape(-1, axes, 2).max(axis=0)
            for axis in range(axes):
                for column, way in enumerate((1, -1)):
                    size = float(busiest[axis, column])
                    if size:
                        load[axis, way] = load.get((axis, way), 0.0) + size
        return load


def _joined(parts: Sequence[FlowRound]) -> FlowRound:
    """The flows of several moves as one round."""
    first = np.cumsum([0, *(len(part.source) for part in parts[:-1])])
    return FlowRound(
        source=np.concatenate([part.source for part in parts]),
        target=np.concatenate([part.target for part in parts]),
        size_bytes=np.concatenate([part.size_bytes for part in parts]),
        latency_ps=np.concatenate([part.latency_ps for part in parts]),
        pair_flow=np.concatenate(
            [part.pair_flow + base for part, base in zip(parts, first, strict=True)]
        ),
        pair_link=np.concatenate([part.pair_link for part in parts]),
        pair_weight=np.concatenate([part.pair_weight for part in parts]),
    )
