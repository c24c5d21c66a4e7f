# SPDX-License-Identifier: Apache-2.0
"""Closed-form network model: rounds and bytes of the algorithm, added up by formula.

A collective's time is the larger of two things: the slowest colour by itself, each of its
rounds paying for its bytes and its hops; and the bytes on the busiest link at the link's
rate. Where colours never meet on a link the first is exact. Where they do, the result is a
lower bound: `link_level` gives the contention.

Legend: ``V`` bytes of the whole array, ``N`` length of an axis, ``P`` chips of a group,
``W`` rate of one direction of a link, ``a`` seconds per hop, ``d`` slices.

Gather of blocks of ``b`` bytes on one axis, the building block of the ring algorithms:
both ways round a ring ``floor(N/2) a + b (N-1) / (2 W)``; one way round it, or on a line,
``(N-1) (a + b / W)``. A reduce-scatter is a gather run backwards; an all-reduce is both.
All-to-all: bytes on the middle link of the worst axis, ``b N / (8 W)`` on an even ring, and
not less than the hops to the farthest chip. Of uneven parts (`ici.uneven`) it is the busiest
link of all, which no sender, receiver or bisection can do with less than.
Between slices: each chip exchanges its part directly with the same chip of the others.
Faults: an axis is as slow as its slowest link, one that is down being its detour, and
stragglers hold up all from the start. That is an estimate, not a bound.

Reference: Austin et al., How to Scale Your Model (2025), chapter 3, for the ring forms.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.ici.algorithms import Algorithm, choose, pipeline_pieces
from torchtpu_core.ici.collectives import IciLink
from torchtpu_core.ici.colours import Colour, colours_of
from torchtpu_core.ici.fabric import Floats
from torchtpu_core.ici.faults import refuse_chips_down
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.lattice import farthest_alone, link_shares
from torchtpu_core.ici.messages import messages_bound
from torchtpu_core.ici.model import CollectiveTime, Message, array_bytes
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.span import NO_AXIS, Span, SpanAxis
from torchtpu_core.ici.uneven import Sizes, UnevenParts, hops_and_ways, loads, uneven_parts
from torchtpu_core.units import seconds_to_ps

MODEL = "closed form"
DIRECTIONS = (1, -1)
Load = dict[tuple[int, int], float]
# A reduce-scatter, then an all-gather.
_TWICE = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)


@dataclass(slots=True, kw_only=True)
class Stage:
    """One part of a collective: seconds, the hops in them, bytes by (physical axis, direction)."""

    time_s: float = 0.0
    latency_s: float = 0.0
    load: Load = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The model that answers at once."""

    network: Network

    def collective_time(
        self,
        kind: CollectiveKind,
        operand_bytes: float,
        span: Span,
        *,
        offload: bool | None = None,
    ) -> CollectiveTime:
        """Simulated time of a collective; see `NetworkModel.collective_time`."""
        whole = array_bytes(kind, operand_bytes, span.devices)
        if span.devices == 1 or operand_bytes <= 0:
            return CollectiveTime(kind=kind, time_ps=0, model=MODEL)
        refuse_chips_down(self.network.slice_, self.network.faults)
        algorithm = choose(kind, whole, span, self.network.slice_.chip, offload)
        inner = self.inner_stage(kind, whole, span, algorithm)
        return self.result_of(kind, whole, span, algorithm, inner, MODEL)

    def messages_time(
        self, messages: Sequence[Message], kind: CollectiveKind = CollectiveKind.PERMUTE
    ) -> CollectiveTime:
        """Simulated time of messages that start together; see `NetworkModel.messages_time`."""
        return messages_bound(self.network, messages, kind, MODEL)

    def uneven_time(self, group: Sequence[int], sizes: Sizes) -> CollectiveTime:
        """Simulated time of an uneven all-to-all; see `NetworkModel.uneven_time`."""
        parts = uneven_parts(group, sizes, self.network)
        refuse_chips_down(self.network.slice_, self.network.faults)
        stages = [uneven_stage(one, parts.span, self.network) for one in parts.within]
        return self.uneven_result(parts, max(stages, key=lambda stage: stage.time_s), MODEL)

    def uneven_result(self, parts: UnevenParts, inner: Stage, model: str) -> CollectiveTime:
        """The answer made of the stage within a slice, and those within chips and between."""
        span, kind = parts.span, CollectiveKind.RAGGED_ALL_TO_ALL
        algorithm = choose(kind, 0, span, self.network.slice_.chip)
        between = self._dcn_stage(parts.dcn_bytes) if parts.dcn_bytes else Stage()
        die = Stage()
        if parts.die_bytes:
            die = over_die(parts.die_bytes, self._die(span))
        return self._joined(kind, span, algorithm, (inner, die, between), model)

    def _die(self, span: Span) -> IciLink:
        """The link between a chip's devices; where it is not published it hides, or raises."""
        if span.chips == 1 or self.network.die is not None:
            return self.network.needed_die()
        return IciLink(bytes_per_s=math.inf, hop_latency_s=0.0)

    def inner_stage(
        self, kind: CollectiveKind, whole: float, span: Span, algorithm: Algorithm
    ) -> Stage:
        """The stage within a slice."""
        if not span.axes:
            return Stage()
        network, local = self.network, whole * span.sharing
        if kind is CollectiveKind.ALL_TO_ALL:
            return all_to_all(local * span.cores, span, network)
        if kind is CollectiveKind.BROADCAST and algorithm.pipelined:
            return pipeline(local, span.axes[0], network)
        colours = colours_of(algorithm, span)
        if algorithm.single_phase:
            return gather(local * span.chips_per_slice, colours, network)
        return repeated(gather(local, colours, network), 2 if kind in _TWICE else 1)

    def _between_slices(self, kind: CollectiveKind, whole: float, span: Span) -> Stage:
        """The stage over the data centre network, after or before the one within slices."""
        dcn, count = self.network.dcn, span.slices
        if count == 1 or dcn is None:
            return Stage()
        chip_bytes = whole * span.sharing / span.chips_per_slice
        if kind is CollectiveKind.ALL_TO_ALL:
            chip_bytes = whole * span.sharing * span.cores
        once = self._dcn_stage(chip_bytes * (count - 1) / count)
        return repeated(once, 2 if kind in _TWICE else 1)

    def _dcn_stage(self, sent: float) -> Stage:
        """The stage in which each chip sends so much to other slices at once."""
        dcn = self.network.dcn
        assert dcn is not None
        return Stage(
            time_s=sent / dcn.bytes_per_s + dcn.hop_latency_s,
            latency_s=dcn.hop_latency_s,
            load={(0, 1): sent},
        )

    def result_of(
        self,
        kind: CollectiveKind,
        whole: float,
        span: Span,
        algorithm: Algorithm,
        inner: Stage,
        model: str,
    ) -> CollectiveTime:
        """The answer, with the stages within chips and between slices of one array."""
        between = self._between_slices(kind, whole, span)
        die = within_chip(kind, whole, span, self._die(span)) if span.cores > 1 else Stage()
        return self._joined(kind, span, algorithm, (inner, die, between), model)

    def _joined(
        self,
        kind: CollectiveKind,
        span: Span,
        algorithm: Algorithm,
        parts: tuple[Stage, Stage, Stage],
        model: str,
    ) -> CollectiveTime:
        """The answer made of the stages within a slice, within chips, and between slices.

        Cores exchange over the dies' link while other parts travel between chips, so that
        the longer of the two counts.
        """
        inner, die, between = parts
        load = inner.load
        stages = [("die", die) if die.time_s > inner.time_s else ("ici", inner), ("dcn", between)]
        by_axis: dict[int, int] = {}
        for (axis, _), size in load.items():
            by_axis[axis] = max(by_axis.get(axis, 0), round(size))
        slowest = max(stages, key=lambda stage: stage[1].time_s)[0]
        busiest = max(by_axis, key=by_axis.__getitem__, default=None)
        exchange = [f"DCN exchange of {span.slices} slices"] if span.slices > 1 else []
        names = [algorithm.name, *exchange] if span.axes else exchange or [algorithm.name]
        late_ps = max(self.network.faults.chips_late.values(), default=0)
        return CollectiveTime(
            kind=kind,
            time_ps=seconds_to_ps(sum(stage.time_s for _, stage in stages))
            + (late_ps if model == MODEL else 0),
            latency_ps=seconds_to_ps(sum(stage.latency_s for _, stage in stages)),
            busiest_link_bytes=max(by_axis.values(), default=0),
            busiest_link=_label(busiest) if slowest == "ici" else slowest,
            axis_bytes=by_axis,
            dcn_bytes=round(sum(between.load.values())),
            phases=_phases(kind, span, algorithm),
            schedule=" + ".join(names),
            engine=algorithm.engine,
            model=model,
        )


def _phases(kind: CollectiveKind, span: Span, algorithm: Algorithm) -> int:
    """Rings along one axis after another, where the algorithm has such.

    What devices of a chip and slices exchange overlaps with them or has its own latency.
    """
    if not algorithm.strategy:
        return 1
    return max(1, len(span.axes) * (2 if kind in _TWICE else 1))


def _label(axis: int | None) -> str:
    return "" if axis is None else "line" if axis == NO_AXIS else f"axis {axis}"


def gather(whole: float, colours: Sequence[Colour], network: Network) -> Stage:
    """The stage in which every chip comes to have all of `whole` bytes, ring by ring."""
    load: Load = defaultdict(float)
    slowest = Stage()
    for colour in colours:
        time_s = latency_s = 0.0
        for axis, held in colour.phases():
            link = network.axis_link(axis.axis)
            sent = colour.sent(axis, held * colour.share * whole)
            hops_s = colour.rounds(axis) * axis.stride * link.hop_latency_s
            time_s += sent / link.bytes_per_s + hops_s
            latency_s += hops_s
            for way in colour.ways_on(axis):
                load[axis.axis, way] += sent
        if time_s >= slowest.time_s:
            slowest = Stage(time_s=time_s, latency_s=latency_s)
    bound_s = _loaded_s(load, network)
    return Stage(time_s=max(slowest.time_s, bound_s), latency_s=slowest.latency_s, load=dict(load))


def _loaded_s(load: Load, network: Network) -> float:
    """Seconds in which the busiest link carries its bytes."""
    return max(size / network.axis_link(axis).bytes_per_s for (axis, _), size in load.items())


def repeated(stage: Stage, times: int) -> Stage:
    """A stage that runs several times, one after another."""
    return Stage(
        time_s=times * stage.time_s,
        latency_s=times * stage.latency_s,
        load={place: times * size for place, size in stage.load.items()},
    )


def all_to_all(chip_bytes: float, span: Span, network: Network) -> Stage:
    """The stage in which every chip sends `chip_bytes` in equal parts to all, itself included."""
    load: Load = {}
    torus, link = network.slice_.torus, network.link
    if span.twisted:
        part = chip_bytes / span.chips_per_slice
        for axis, shares in enumerate(link_shares(torus)):
            load |= {(axis, way): part * n for way, n in zip(DIRECTIONS, shares, strict=True)}
        hops, whole_hops = torus.diameter, farthest_alone(torus)
    else:
        for line in span.axes:
            half, length = line.length // 2, line.length
            # A ring has two middles; on it as on a line, half of each half's bytes cross them.
            crossing = chip_bytes * half * (length - half) / length / (2 if line.wrap else 1)
            load |= {(line.axis, way): crossing * line.sharing for way in DIRECTIONS}
        hops = sum(axis.rounds * axis.stride for axis in span.axes)
        ties = sum(axis.stride for axis in span.axes if axis.wrap and axis.length % 2 == 0)
        whole_hops = hops - ties
    latency_s = hops * link.hop_latency_s
    # Flows that go half-way round are split over two ways and end early: the last are others.
    loaded_s = _loaded_s(load, network) + whole_hops * link.hop_latency_s
    ways = math.prod(2 for axis in span.axes if axis.wrap and axis.length % 2 == 0)
    farthest_s = chip_bytes / span.chips_per_slice / ways / link.bytes_per_s + latency_s
    return Stage(time_s=max(loaded_s, farthest_s), latency_s=latency_s, load=load)


def uneven_stage(parts: Floats, span: Span, network: Network) -> Stage:
    """The stage in which positions of every group send each other `parts`, `[P, P]` bytes."""
    if not span.axes:
        return Stage()
    torus, link = network.slice_.torus, network.link
    busiest = {key: float(one.max()) for key, one in loads(parts, span, torus).items()}
    load = {key: size for key, size in busiest.items() if size}
    if not load:
        return Stage()
    hops, ways = hops_and_ways(span, torus)
    far = np.where(parts > 0, hops, 0)
    # As of even parts: what is split over two ways is not among the last.
    last = int(np.where(ways == 1, far, 0).max())
    alone_s = np.where(hops, parts, 0.0) / ways / link.bytes_per_s + far * link.hop_latency_s
    return Stage(
        time_s=max(_loaded_s(load, network) + last * link.hop_latency_s, float(alone_s.max())),
        latency_s=int(far.max()) * link.hop_latency_s,
        load=load,
    )


def pipeline(whole: float, axis: SpanAxis, network: Network) -> Stage:
    """The stage in which `whole` bytes travel from the first chip of an axis past all others.

    Both ways round a ring, half of them each; in `k` pieces that follow each other:
    ``(k + N - 2) b / W + (N - 1) a``.
    """
    link, ways = network.axis_link(axis.axis), 2 if axis.wrap else 1
    pieces = pipeline_pieces(whole / ways)
    sent = whole / ways * axis.sharing
    latency_s = (axis.length - 1) * axis.stride * link.hop_latency_s
    time_s = sent * (pieces + axis.length - 2) / pieces / link.bytes_per_s + latency_s
    load = {(axis.axis, way): sent for way in DIRECTIONS[:ways]}
    return Stage(time_s=time_s, latency_s=latency_s, load=load)


def within_chip(kind: CollectiveKind, whole: float, span: Span, die: IciLink) -> Stage:
    """The stage between the devices of one chip, a line of them."""
    sent = whole if kind is CollectiveKind.BROADCAST else whole * (span.cores - 1) / span.cores
    if kind is CollectiveKind.ALL_REDUCE:
        sent *= 2
    return over_die(sent, die)


def over_die(sent: float, die: IciLink) -> Stage:
    """The stage in which a device sends so much to the others of its chip."""
    return Stage(time_s=sent / die.bytes_per_s + die.hop_latency_s, latency_s=die.hop_latency_s)
