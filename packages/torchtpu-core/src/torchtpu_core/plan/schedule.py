# SPDX-License-Identifier: Apache-2.0
"""Places the operators of a step on the units of one device, alone or beside other ranks'.

The core works in the order of the program. A collective starts when its operands are
there, its links are free and the one before it on the same group has been used (one
collective ahead, as FSDP prefetches); the operator that needs its result waits. Driving a
collective takes the core the part of its time that the step model calls not hidden.

A rank's step is placed by a generator, which asks what depends on other ranks where it comes to
it: when a message arrives, and when the others are ready for a collective. `plan.join` answers.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.faults import NO_FAULTS, Faults
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import CollectiveTime, network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.plan.collectives import RECEIVE
from torchtpu_core.plan.fusion import Fusion
from torchtpu_core.plan.grouped import merged_products
from torchtpu_core.plan.links import messages_of
from torchtpu_core.plan.placed import Placed, Schedule, Unit
from torchtpu_core.plan.records import Op, Parts, Work
from torchtpu_core.plan.recurrent_memory import is_recurrent
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.collective_pricing import start_s
from torchtpu_core.simulator.rates import Rates

# Passes over the matrix unit of a float32 product, by torch's setting of its precision.
F32_PASSES = {"highest": 6, "high": 3, "medium": 1}
# XLA makes a float64 product of three float32 ones, of high and low parts (libtpu 0.0.42.1, v5e).
F64_PRODUCTS = 3


class Pricer:
    """Seconds of single operators on one device of a slice."""

    def __init__(
        self,
        where: Slice,
        slices: int,
        f32_precision: str = "highest",
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.where = where
        self.network = Network.of(where, slices, faults) if where.devices * slices > 1 else None
        # The closed form only estimates what a fault does.
        self.model = network_model(self.network, link_level=bool(faults)) if self.network else None
        self.rates = Rates.of(where.chip, per_core=where.devices_per_chip > 1)
        passes = F32_PASSES[f32_precision]
        self._passes = {"f32": passes, "f64": F64_PRODUCTS * passes}
        self._times: dict[tuple[str, int | Parts, int], CollectiveTime] = {}

    def core(self, op: Op, moved_bytes: float, vmem_bytes: float) -> tuple[float, str, float]:
        """Seconds on the core, what bounds them, and matrix operations."""
        memory = self.rates.hbm_s(moved_bytes)
        matrix, vector, flops = self._products(op)
        if not matrix:  # the products' rates hold for operands and results in VMEM
            vector = max(vector, self.rates.vmem_s(vmem_bytes))
        vector += op.drawn * cal.RANDOM_OPS.value / self.rates.vector_ops_per_s
        if is_recurrent(op):  # each step of its loop waits for what the one before moves
            return matrix + vector + memory, "matrix unit", flops
        if matrix + vector > memory:
            return matrix + vector, "matrix unit" if matrix > vector else "vector unit", flops
        return memory, "HBM", flops

    def product(self, op: Op, m: int, k: int, n: int) -> tuple[float, bool]:
        """Seconds of one product of an operator, and whether the matrix unit does it.

        The vector unit does those that it has done sooner, in one pass.
        """
        matrix = self._passes.get(op.dtype, 1) * self.rates.fused_matmul_s(m, k, n, op.dtype)
        vector = self.rates.vector_product_s(m, k, n)
        return min(matrix, vector), matrix <= vector

    def collective(self, op: Op) -> CollectiveTime:
        """Time and traffic of a collective."""
        key = (op.collective, op.parts or op.moved_bytes, hash(op.group))
        if key not in self._times:
            self._times[key] = self._collective(op)
        return self._times[key]

    def is_irregular(self, op: Op) -> bool:
        """Whether the ranks of a collective form no grid of the slice."""
        if self.network is None or len(op.group) < 2:
            return False
        return self._span(op.group).members is not None

    def _products(self, op: Op) -> tuple[float, float, float]:
        """Seconds of the matrix unit and of the vector unit, and matrix operations."""
        if op.work is Work.ATTENTION:
            keys, values = op.head_dims
            # Without the kernels its products are XLA's own.
            passes = 1 if op.flash else self._passes.get(op.dtype, 1)
            seconds = self.rates.attention_s(
                op.scores, keys, values, backward=op.gradient, passes=passes
            )
            return seconds, 0.0, op.scores * (keys + values) * (5 if op.gradient else 2)
        spent = {True: 0.0, False: 0.0}
        for batch, m, k, n in merged_products(op):
            seconds, on_matrix_unit = self.product(op, m, k, n)
            spent[on_matrix_unit] += batch * seconds
        flops = sum(2.0 * math.prod(row) for row in op.products)
        return spent[True], spent[False], flops

    def _collective(self, op: Op) -> CollectiveTime:
        message = op.collective == RECEIVE
        kind = CollectiveKind.PERMUTE if message else CollectiveKind(op.collective)
        if self.model is None or self.network is None or len(op.group) < 2:
            return CollectiveTime(kind=kind, time_ps=0)
        if kind is CollectiveKind.PERMUTE:
            return self.model.messages_time(messages_of(op.group, op.moved_bytes, self.network))
        if op.parts is not None:
            return self._uneven(op.group, op.parts)
        return self.model.collective_time(kind, op.moved_bytes, self._span(op.group))

    def _uneven(self, group: tuple[int, ...], parts: Parts) -> CollectiveTime:
        """Links of a slice with faults are followed one by one, unless they are too many."""
        assert self.model is not None and self.network is not None
        try:
            return self.model.uneven_time(group, parts.sizes)
        except TorchTPUError:
            return network_model(self.network).uneven_time(group, parts.sizes)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - one pricer lives as long as a plan
    def _span(self, group: tuple[int, ...]):  # type: ignore[no-untyped-def]
        assert self.network is not None
        return span_of(group, self.network)


class _Units:
    """When each unit is free and each storage is ready."""

    def __init__(self) -> None:
        self.core_s = 0.0
        self.issued_s = 0.0  # nothing that follows a read of the host's begins before its end
        self.links: dict[object, float] = defaultdict(float)
        self.ready: dict[int, float] = {}
        self.waited: dict[int, str] = {}
        self.used: dict[object, float] = defaultdict(float)
        self.pending: dict[int, object] = {}
        self.late: dict[int, float] = {}  # by how much other ranks made a result late
        self.incoming: dict[int, Incoming] = {}
        self.messages: Counter[object] = Counter()


#: Who sends, who receives, and how many messages of theirs went before.
MessageKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that the rank is about to use; asks when it arrives.

    Attributes:
        key: which message.
        alone_s: when it would arrive if it were sent at once.
    """

    key: MessageKey
    alone_s: float


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that the rank sends; tells when it arrives."""

    key: MessageKey
    arrival_s: float


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective that the rank is ready for; asks when all of its ranks are.

    Attributes:
        key: which collective: its kind, the shape of its group, and how many went before.
        ranks: who takes part.
        ready_s: when this rank is ready.
    """

    key: tuple[str, tuple[int, ...], int]
    ranks: tuple[int, ...]
    ready_s: float


Question = Incoming | Outgoing | Meeting
Placing = Generator[Question, float | None, Schedule]


def schedule(ops: Sequence[Op], fusion: Fusion, pricer: Pricer, pace: float = 1.0) -> Schedule:
    """Places a step as if other ranks were always ready; times are simulated."""
    steps = placing(ops, fusion, pricer, pace)
    try:
        next(steps)
        while True:
            steps.send(None)
    except StopIteration as ended:
        result: Schedule = ended.value
        return result


def placing(ops: Sequence[Op], fusion: Fusion, pricer: Pricer, pace: float = 1.0) -> Placing:
    """Places a step; an answer of None is that nobody is waited for.

    `pace` is how many times as long the core takes for an operator as the pricer says.
    """
    result, units = Schedule(), _Units()
    critical: dict[str, float] = defaultdict(float)
    total = waits = driven = 0.0
    for index, op in enumerate(ops):
        if op.work is Work.HOST:
            critical["waiting for the host"] += _wait_for_host(op, pricer, units)
            continue
        for storage in op.reads:
            if storage in units.incoming:
                message = units.incoming.pop(storage)
                arrival = yield message
                units.ready[storage] = message.alone_s if arrival is None else arrival
                units.late[storage] = units.ready[storage]
        if op.collective == RECEIVE:
            _expect(op, pricer, units)
            continue
        if op.work is Work.COLLECTIVE:
            seconds, drive = yield from _place_collective(index, op, pricer, units, result)
            total, driven = total + seconds, driven + drive
            critical[f"driving {op.collective}"] += drive
            continue
        seconds, bound, flops = pricer.core(op, fusion.moved_bytes[index], fusion.vmem_bytes[index])
        seconds *= pace
        ready = max((units.ready.get(storage, 0.0) for storage in op.reads), default=0.0)
        if index in fusion.staged:
            start = ready
            units.core_s += seconds
        else:
            start = max(units.core_s, ready)
            if start > units.core_s:
                cause = max(op.reads, key=lambda storage: units.ready.get(storage, 0.0))
                others_s = min(start - units.core_s, units.late.get(cause, 0.0))
                own_s = start - units.core_s - others_s
                critical["waiting for another rank"] += others_s
                critical[f"waiting for {units.waited.get(cause, 'a result')}"] += own_s
                waits += own_s
            units.core_s = start + seconds
        critical[f"{op.phase.value}: {op.work.value}"] += seconds
        end = start + seconds
        for storage in op.reads:
            group = units.pending.pop(storage, None)
            if group is not None:
                units.used[group] = max(units.used[group], start)
        for storage in op.writes:
            units.ready[storage] = end
        if seconds > 0:
            moved = fusion.moved_bytes[index]
            result.placed.append(Placed(op, index, Unit.CORE, start, end, bound, flops, moved))
    result.step_s = max([units.core_s, *units.links.values(), *units.ready.values()])
    result.exposed_s = driven + waits + max(0.0, result.step_s - units.core_s)
    result.hidden_s = max(0.0, total - result.exposed_s)
    result.critical = {
        name: spent for name, spent in sorted(critical.items(), key=lambda item: -item[1]) if spent
    }
    return result


def _wait_for_host(op: Op, pricer: Pricer, units: _Units) -> float:
    """The device runs dry, and waits until the host has gone on; returns those seconds."""
    link = pricer.where.chip.host_link_bytes_per_s_per_chip
    seconds = cal.HOST_START_S.value + (op.host_bytes / link.value if link else 0.0)
    units.core_s = max(units.core_s, *units.links.values(), 0.0) + seconds
    units.issued_s = units.core_s
    return seconds


def _expect(op: Op, pricer: Pricer, units: _Units) -> None:
    """Notes what a message will bring; who reads it asks for it."""
    if len(op.group) < 2:
        return  # a step without communication
    message = (op.group[0], op.group[1], units.messages[op.group])
    units.messages[op.group] += 1
    alone_s = units.core_s + pricer.collective(op).time_s
    for storage in op.writes:
        units.incoming[storage] = Incoming(message, alone_s)


def _place_collective(
    index: int,
    op: Op,
    pricer: Pricer,
    units: _Units,
    result: Schedule,
) -> Generator[Question, float | None, tuple[float, float]]:
    """Places a collective; returns its seconds, and those in which it keeps the core."""
    found = pricer.collective(op)
    seconds = found.time_s + start_s(found)
    result.sent[op.collective, op.parts or op.moved_bytes, op.group] += 1
    result.dcn_bytes += found.dcn_bytes
    over_dcn = found.dcn_bytes > 0
    # Groups along different axes use different links.
    links = (frozenset(found.axis_bytes), over_dcn)
    group = (op.collective, hash(op.group))
    ready = max((units.ready.get(storage, 0.0) for storage in op.reads), default=0.0)
    start = max(ready, units.links[links], units.used[group], units.issued_s)
    late = 0.0
    if op.peer < 0 and len(op.group) > 1:
        least = min(op.group)
        shape = op.collective, tuple(rank - least for rank in op.group)
        agreed = yield Meeting((*shape, units.messages[shape]), op.group, start)
        units.messages[shape] += 1
        late = 0.0 if agreed is None else max(0.0, agreed - start)
        start += late
    end = start + seconds
    units.links[links] = end
    drive = (1 - cal.ICI_HIDDEN.value) * seconds
    units.core_s += drive
    for storage in op.writes:
        units.ready[storage] = end
        units.waited[storage] = op.collective
        units.late[storage] = late
        units.pending[storage] = group
    if op.peer >= 0 and len(op.group) > 1:
        # It leaves when the core has come to it.
        end = max(end, units.core_s)
        yield Outgoing((op.group[0], op.group[1], units.messages[op.group]), end)
        units.messages[op.group] += 1
    if seconds > 0:
        unit = Unit.DCN if over_dcn else Unit.ICI
        result.placed.append(Placed(op, index, unit, start, end, "network"))
    return seconds, drive
