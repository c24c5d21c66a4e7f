# SPDX-License-Identifier: Apache-2.0
"""Link-level network model: the explicit schedule of all groups, on links that they share.

Every piece is a flow over the links of its route; flows that meet on a link share it, max-min
fair; each hop delays the first byte. Chips that see the same are simulated once
(`ici.alike`): all of them on a torus without faults, mirror images where there is one.
`symmetric=False` keeps every flow apart, with the same result.

Slices of a job are alike, so one is simulated; between slices each chip has ports of its
own, which the closed form describes exactly. Stages of a hierarchical collective follow each
other without overlap. Colours wait for nothing but their own data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.algorithms import Algorithm, choose
from torchtpu_core.ici.alike import merged
from torchtpu_core.ici.closed_form import ClosedForm, Stage, uneven_stage
from torchtpu_core.ici.embedding import alike_everywhere, embed
from torchtpu_core.ici.fabric import Fabric, Floats, Ints
from torchtpu_core.ici.faults import refuse_chips_down
from torchtpu_core.ici.fluid import (
    FlowPattern,
    FlowRound,
    Fluid,
    FluidResult,
    Lanes,
    bytes_on_links,
    on_links,
)
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.lanes import LaneMaker
from torchtpu_core.ici.messages import latencies_ps, routed
from torchtpu_core.ici.model import CollectiveTime, Message, array_bytes
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.pairs import all_pairs, pairs_alike
from torchtpu_core.ici.schedules import ring_schedule
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.uneven import Sizes, uneven_parts
from torchtpu_core.units import PS_PER_S, ps_to_seconds

MODEL = "link level"
#: Flows of an all-to-all that are simulated one by one.
MOST_PAIRS = 300_000
#: Chips with faults that are tried as the other end of a mirror's axis.
MOST_CENTRES = 16


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
        ends = np.array([(m.source, m.target) for m in messages], dtype=np.int64)
        pattern = FlowPattern.of(
            ends[:, 0],
            ends[:, 1],
            latencies_ps(self.network, found).astype(np.int64),
            found.message,
            found.link,
            np.ones(len(found.link)),
        )
        flows = FlowRound(pattern, sizes)
        result = Fluid(fabric.capacity(), [[flows]], self.network.devices).run()
        return replace(bound, time_ps=result.end_ps, model=MODEL)

    def uneven_time(self, group: Sequence[int], sizes: Sizes) -> CollectiveTime:
        """Simulated time of an uneven all-to-all; see `NetworkModel.uneven_time`."""
        closed = ClosedForm(self.network)
        parts = uneven_parts(group, sizes, self.network)
        refuse_chips_down(self.network.slice_, self.network.faults)
        stages = [self._uneven_stage(one, parts.span) for one in parts.within]
        return closed.uneven_result(parts, max(stages, key=lambda stage: stage.time_s), MODEL)

    def uneven_loads(self, group: Sequence[int], sizes: Sizes) -> Floats:
        """Bytes of an uneven all-to-all on every ICI link of a slice; see `link_loads`.

        Of several slices each link has those of the slice in which it carries most.
        """
        torus, parts = self.network.slice_.torus, uneven_parts(group, sizes, self.network)
        load = np.zeros(self._slice_fabric().links)
        for one in parts.within if parts.span.axes else ():
            lanes = self._uneven_lanes(one, parts.span)
            load = np.maximum(load, bytes_on_links(lanes, len(load)))
        result: Floats = load[: self._slice_fabric().ici_links].reshape(torus.chips, -1)
        return result

    def _uneven_stage(self, parts: Floats, span: Span) -> Stage:
        if not span.axes:
            return Stage()
        result = self._fluid(self._uneven_lanes(parts, span))
        return Stage(
            time_s=ps_to_seconds(result.end_ps),
            latency_s=uneven_stage(parts, span, self.network).latency_s,
            load=self._load_by_axis([result], span),
        )

    def _uneven_lanes(self, parts: Floats, span: Span) -> Lanes:
        """The flows of all groups, each by itself."""
        chips = embed(span, self.network.slice_.torus)
        self._refuse_too_many(chips)
        hop_ps = self.network.link.hop_latency_s * PS_PER_S
        return [[all_pairs(self._slice_fabric(), span, chips, parts, hop_ps)]]

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
            maker = LaneMaker(self._slice_fabric())
            lanes += [maker.lane(lane, chips) for lane in schedule.lanes]
            owner += [number] * len(schedule.lanes)
        ends = self._fluid(lanes).lane_end_ps
        return tuple(
            max(end for end, of in zip(ends, owner, strict=True) if of == number)
            for number in range(len(collectives))
        )

    def link_loads(self, kind: CollectiveKind, operand_bytes: float, span: Span) -> Floats:
        """Bytes on every ICI link of a slice, `[chips, 2 axes]`: up and down each axis.

        Zero on links that the groups do not use, and where there is none. Loads follow from
        the schedule; nothing is simulated.

        Raises:
            TorchTPUError: an all-to-all of too many chips that do not all see the same.
        """
        torus = self.network.slice_.torus
        columns = 2 * len(torus.shape)
        if not span.axes:
            return np.zeros((torus.chips, columns))
        whole = array_bytes(kind, operand_bytes, span.devices)
        algorithm = choose(kind, whole, span, self.network.slice_.chip)
        lanes, alike = self._lanes(kind, whole, span, algorithm)
        if alike:
            return np.tile(bytes_on_links(lanes, columns), (torus.chips, 1))
        load = bytes_on_links(lanes, self._slice_fabric().links)
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

        Links of an all-to-all with `symmetric`, on a torus whose rings are all whole, are
        numbered by axis and direction only.
        """
        whole = array_bytes(kind, operand_bytes, span.devices)
        algorithm = choose(kind, whole, span, self.network.slice_.chip, offload)
        return self._simulate(kind, whole, span, algorithm)

    def _simulate(
        self, kind: CollectiveKind, whole: float, span: Span, algorithm: Algorithm
    ) -> FluidResult:
        lanes, alike = self._lanes(kind, whole, span, algorithm)
        mirror = self._mirror(span, algorithm)
        if mirror is not None:
            # What a colour does one way round, its twin does the other way round at the mirrored
            # chips: one of the two is simulated, on links that are each other's image.
            half = self._fluid(on_links(lanes[::2], mirror))
            ends = tuple(end for end in half.lane_end_ps for _ in (0, 1))
            every = bytes_on_links(lanes, len(half.link_bytes))
            return replace(half, lane_end_ps=ends, link_bytes=every)
        if alike:
            links = np.full(2 * len(self.network.slice_.torus.shape), self.network.link.bytes_per_s)
            return Fluid(links / PS_PER_S, lanes, 1).run()
        return self._fluid(lanes)

    def _mirror(self, span: Span, algorithm: Algorithm) -> Ints | None:
        """For each link the one that stands for it and its mirror image; None without a mirror.

        Asked where each colour goes one way round all rings of the whole torus. The mirror turns
        the torus about a point, so that up and down change places.
        """
        torus = self.network.slice_.torus
        plain = alike_everywhere(span) and span.chips_per_slice == torus.chips
        if not (self.symmetric and algorithm.unidirectional and plain):
            return None
        fabric, starts = self._slice_fabric(), self._starts()
        rates = fabric.capacity()[: fabric.per_slice].reshape(torus.chips, -1, 2)
        places = np.array([torus.coordinates(chip) for chip in range(torus.chips)])
        below = np.concatenate([[1], np.cumprod(torus.shape)[:-1]])
        odd = np.unique(np.append(np.nonzero(rates != rates.max())[0], np.flatnonzero(starts)))
        odd = odd if len(odd) else np.zeros(1, dtype=np.int64)
        for chip in odd[:MOST_CENTRES].tolist():
            image = ((places[odd[0]] + places[chip] - places) % torus.shape) @ below
            if (rates[image][:, :, ::-1] == rates).all() and (starts[image] == starts).all():
                links = np.arange(fabric.links)
                own = links[: fabric.per_slice].reshape(rates.shape)
                links[: fabric.per_slice] = np.minimum(own, own[image][:, :, ::-1]).ravel()
                return links
        return None

    def _lanes(
        self, kind: CollectiveKind, whole: float, span: Span, algorithm: Algorithm
    ) -> tuple[Lanes, bool]:
        """The flows of a collective, and whether they are those of one chip for all."""
        torus, local = self.network.slice_.torus, whole * span.sharing
        if kind is CollectiveKind.ALL_TO_ALL:
            return self._all_to_all(local * span.cores, span)
        schedule = ring_schedule(kind, local, span, algorithm, torus)
        maker, chips = LaneMaker(self._slice_fabric()), embed(span, torus)
        return [maker.lane(lane, chips) for lane in schedule.lanes], False

    def _fluid(self, lanes: Lanes) -> FluidResult:
        """The simulation of a slice, flow by flow."""
        capacity = self._slice_fabric().capacity()
        every = Fluid(capacity, lanes, self.network.slice_.torus.chips, self._starts())
        if not self.symmetric:
            return every.run()
        return replace(merged(every).run(), link_bytes=bytes_on_links(lanes, len(capacity)))

    def _starts(self) -> Ints:
        late = self.network.faults.chips_late
        starts = np.zeros(self.network.slice_.torus.chips, dtype=np.int64)
        starts[list(late)] = list(late.values())
        return starts

    def _slice_fabric(self) -> Fabric:
        return Fabric(replace(self.network, slices=1))

    def _all_to_all(self, chip_bytes: float, span: Span) -> tuple[Lanes, bool]:
        torus = self.network.slice_.torus
        part = chip_bytes / span.chips_per_slice
        hop_ps = self.network.link.hop_latency_s * PS_PER_S
        whole = self.symmetric and not self.network.faults
        if whole and (alike_everywhere(span) or span.twisted):
            return [[pairs_alike(span, torus, part, hop_ps)]], True
        chips = embed(span, torus)
        self._refuse_too_many(chips)
        return [[all_pairs(self._slice_fabric(), span, chips, part, hop_ps)]], False

    def _refuse_too_many(self, chips: Ints) -> None:
        """Raises TorchTPUError where the flows between `chips`, `[groups, P]`, are too many."""
        groups, count = chips.shape
        if groups * count**2 > MOST_PAIRS:
            raise TorchTPUError(
                f"An all-to-all of {count} chips in {groups} group(s) that do not all see the same "
                f"is {groups * count**2} flows; at most {MOST_PAIRS} are simulated. Use the closed "
                "form."
            )

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
