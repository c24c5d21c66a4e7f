# SPDX-License-Identifier: Apache-2.0
"""Simulated time of a program from the schedule that XLA's TPU compiler made of it.

The compiler says what is fused, what lies in VMEM, which copies and collectives run beside
the core and where the core waits for them. It has no times: those are the simulator's, by
the same rates as everywhere. The core works in the order of the schedule; copies use what it
leaves of HBM (`xla_tpu.copies`), collectives the links.
Imports neither torch nor, but for a Pallas kernel's program, JAX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import Message, NetworkModel, network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.simulator.collective_pricing import start_s
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.xla_tpu.copies import Copies, Copy
from torchtpu_core.xla_tpu.device_groups import groups_of
from torchtpu_core.xla_tpu.hlo import Array, Instruction, Module, bits_of, read
from torchtpu_core.xla_tpu.kernels import work_of
from torchtpu_core.xla_tpu.products import product_of
from torchtpu_core.xla_tpu.spans import CORE, DCN, DMA, ICI, Run, Span
from torchtpu_core.xla_tpu.traffic import UPDATE, Traffic

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_FREE = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "opt-barrier",
        "iota",
        "optimization-barrier",
    ]
)
_KINDS = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "all-gather": CollectiveKind.ALL_GATHER,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
}
_MOVES = frozenset(
    ["copy", "slice", "dynamic-slice", "dynamic-update-slice", "transpose", "reshape"]
)
_INSIDE_FREE = _FREE | {"broadcast", "fusion", "reshape", "transpose", "copy", "slice", "pad"}


def time_of(hlo: str, where: Slice, slices: int = 1) -> Run:
    """The simulated run of a scheduled program on one device of a slice.

    Args:
        hlo: `Compiled.hlo`.
        where: one slice.
        slices: how many.
    """
    walker = _Walker(read(hlo), where, slices)
    entry = walker.module.computations.get(walker.module.entry, [])
    run = Run()
    run.step_s = walker.walk(entry, run, 0.0, 1)
    return run


class _Walker:
    """Walks a schedule."""

    def __init__(self, module: Module, where: Slice, slices: int) -> None:
        self.module = module
        self.known = module.find()
        self.traffic = Traffic(module, self.known)
        self.rates = Rates.of(where.chip, per_core=where.devices_per_chip > 1)
        self.network = Network.of(where, slices) if where.devices * slices > 1 else None
        self.model: NetworkModel | None = network_model(self.network) if self.network else None
        self._bodies: dict[str, float] = {}

    def walk(self, body: Sequence[Instruction], run: Run, now: float, runs: int) -> float:
        """Places a computation's instructions from `now`; returns when all is done."""
        core = now
        free = {ICI: now, DCN: now}
        ends: dict[str, float] = {}
        copies, copied = Copies(), list[tuple[Span, Copy]]()
        for one in body:
            if one.opcode.endswith("-done"):
                name = one.operands[0] if one.operands else ""
                end = max(core, copies.done(name, core), ends.get(name, core))
                if name in ends:
                    copies.advance(core, end, 0.0)
                    self._waited(run, one.opcode, end - core, runs)
                else:
                    self._waited(run, DMA, end - core, runs)
                core = end
                continue
            made = self._span(one, run, core, runs)
            if made is None or made.end_s <= 0:
                continue
            run.spans.append(made)
            if made.unit == DMA:
                copied.append((made, copies.start(one.name, made.end_s)))
                continue
            beside = one.opcode.endswith("-start")
            made.start_s = max(core, free[made.unit]) if made.unit in free else core
            made.end_s += made.start_s
            if made.unit in free:
                free[made.unit] = ends[one.name] = made.end_s
                if not beside:
                    name = "reduce-scatter" if one.opcode == "fusion" else one.opcode
                    self._waited(run, name, made.end_s - core, runs)
            if not beside:
                copies.advance(core, made.end_s, self.rates.hbm_s(made.hbm_bytes))
                core = made.end_s
        end = max([core, copies.drain(core), *free.values()])
        for span, copy in copied:
            span.start_s, span.end_s = copy.start_s, copy.end_s
        return end

    def _waited(self, run: Run, name: str, seconds: float, runs: int) -> None:
        if seconds <= 0:
            return
        name = name.removesuffix("-done").removesuffix("-start")
        run.waited_s[name] = run.waited_s.get(name, 0.0) + seconds * runs

    def _span(self, one: Instruction, run: Run, core: float, runs: int) -> Span | None:
        """The span of an instruction, `end_s` holding its seconds; None if it takes none."""
        kind = one.opcode.removesuffix("-start")
        if kind in _FREE:
            return None
        if kind in _KINDS:
            return self._collective(one, _KINDS[kind], runs)
        if kind == "async":
            inner = self._asynchronous(one, runs)
            return inner if inner is not None else self._copy(one, runs)
        if one.opcode.endswith("-start"):
            return self._copy(one, runs)
        if kind == "while":
            return self._loop(one, run, core, runs)
        if kind in ("call", "conditional"):
            return self._branches(one, run, core, runs)
        if kind == "fusion" and (found := self._reduce_scatter(one, runs)) is not None:
            return found
        return self._on_core(one, run, runs)

    # Beside the core ---------------------------------------------------------------

    def _copy(self, one: Instruction, runs: int) -> Span:
        """A copy between HBM and VMEM: the smaller of what is read and written, once."""
        inner = [i for name in one.called for i in self.module.computations.get(name, [])]
        result = next((i.arrays for i in reversed(inner) if i.root), one.arrays[:2])
        moved = min((a.size_bytes for a in result if a.size_bytes > 64), default=0)
        both = all(a.in_hbm for a in one.arrays[:2]) and not inner
        moved *= 2 if both else 1
        return Span(one, DMA, 0.0, self.rates.hbm_s(moved), "HBM", hbm_bytes=moved, runs=runs)

    def _asynchronous(self, one: Instruction, runs: int) -> Span | None:
        """The collective within an asynchronous computation, such as SparseCore's."""
        for name in one.called:
            for inner in self.module.computations.get(name, []):
                if inner.opcode in _KINDS:
                    return self._collective(inner, _KINDS[inner.opcode], runs, of=one)
        return None

    def _reduce_scatter(self, one: Instruction, runs: int) -> Span | None:
        """A fusion of an all-reduce and the slice of it that a rank needs."""
        for name in one.called:
            for inner in scattered(self.module.computations.get(name, [])):
                return self._collective(inner, CollectiveKind.REDUCE_SCATTER, runs, of=one)
        return None

    def _collective(
        self, one: Instruction, kind: CollectiveKind, runs: int, of: Instruction | None = None
    ) -> Span | None:
        if self.model is None or self.network is None:
            return None
        operands = self._operand_arrays(one) or list(one.arrays)
        moved = sum(a.elements * bits_of(a.dtype) // 8 for a in operands)
        groups = groups_of(one.text, self.network.devices)
        if kind is CollectiveKind.PERMUTE:
            messages = [Message(a, b, moved) for a, b in groups if a != b]
            found = self.model.messages_time(messages)
        elif len(groups[0]) < 2:
            return None
        else:
            found = self.model.collective_time(kind, moved, span_of(groups[0], self.network))
        unit = DCN if found.dcn_bytes else ICI
        seconds = found.time_s + start_s(found)
        return Span(
            of or one,
            unit,
            0.0,
            seconds,
            "network",
            runs=runs,
            collective=found,
            group=tuple(groups[0]),
            moved_bytes=moved,
        )

    # On the core -------------------------------------------------------------------

    def _loop(self, one: Instruction, run: Run, core: float, runs: int) -> Span | None:
        body = self.module.computations.get(one.body, [])
        count = _trips(one, self.module)
        inner = Run()
        once = self.walk(body, inner, core, runs * count) - core
        run.spans += inner.spans
        for name, seconds in inner.waited_s.items():
            run.waited_s[name] = run.waited_s.get(name, 0.0) + seconds
        return Span(
            one, CORE, 0.0, once * count, "loop", hbm_bytes=inner.moved_bytes / runs, runs=runs
        )

    def _branches(self, one: Instruction, run: Run, core: float, runs: int) -> Span:
        """The longest of the computations that may run."""
        tried = []
        for name in one.called:
            inner = Run()
            end = self.walk(self.module.computations.get(name, []), inner, core, runs)
            tried.append((end - core, inner))
        seconds, inner = max(tried, key=lambda pair: pair[0], default=(0.0, Run()))
        run.spans += inner.spans
        return Span(one, CORE, 0.0, seconds, "call", hbm_bytes=inner.moved_bytes / runs, runs=runs)

    def _on_core(self, one: Instruction, run: Run, runs: int) -> Span | None:
        if one.opcode == "custom-call" and "tpu_custom_call" not in one.text:
            return None
        inside = self._inside(one)
        moved = self.traffic.hbm_bytes(one)
        memory = self.rates.hbm_s(moved)
        matrix, flops = self._matrix(inside)
        vector = self._vector(one, inside)
        if one.opcode == "custom-call":
            matrix, vector, flops = self._kernel(one, run, runs)
        parts = {"matrix unit": matrix, "HBM": memory, "vector unit": vector}
        bound = max(parts, key=parts.__getitem__)
        return Span(one, CORE, 0.0, parts[bound], bound, flops, moved, runs)

    def _kernel(self, one: Instruction, run: Run, runs: int) -> tuple[float, float, float]:
        """Seconds of the matrix and of the vector unit of a Pallas kernel, and its flops.

        By its program, else as it states; else nothing is known of it but its operands.
        """
        work = work_of(one.text)
        if work is None:
            stated = _STATED.search(one.text)
            flops = float(stated[1]) if stated else 0.0
            run.unknown["Pallas kernel"] = run.unknown.get("Pallas kernel", 0) + runs
            return flops / (self.rates.flops_per_s["bf16"] * self.rates.fill), 0.0, flops
        matrix = sum(
            times * passes * self.rates.fused_matmul_s(m, k, n, dtype)
            for times, m, k, n, dtype, passes in work.products
        )
        return matrix, work.vector_operations / self.rates.vector_ops_per_s, work.flops

    def _inside(self, one: Instruction) -> list[Instruction]:
        """The instructions of a fusion, nested ones too; of others, itself."""
        if one.opcode != "fusion":
            return [one]
        found: list[Instruction] = []
        for name in one.called:
            for inner in self.module.computations.get(name, []):
                found += self._inside(inner) if inner.opcode == "fusion" else [inner]
        return found

    def _operand_arrays(self, one: Instruction) -> list[Array]:
        return [a for name in one.operands if name in self.known for a in self.known[name].arrays]

    def _matrix(self, inside: Sequence[Instruction]) -> tuple[float, float]:
        seconds = flops = 0.0
        for one in inside:
            found = product_of(one, self._operand_arrays(one))
            if found is not None:
                kind = _rate_of(found.dtype)
                once = self.rates.fused_matmul_s(found.m, found.k, found.n, kind)
                # As in `plan.schedule`: the vector unit does what it has done sooner.
                vector = self.rates.vector_product_s(found.m, found.k, found.n)
                seconds += min(found.passes * once, vector)
                flops += found.flops
        return seconds, flops

    def _vector(self, one: Instruction, inside: Sequence[Instruction]) -> float:
        """Seconds of the vector unit: one operation per element and instruction."""
        operations = 0
        for inner in inside:
            if inner.opcode in _INSIDE_FREE or inner.opcode in ("convolution", "dot"):
                continue
            if inner.opcode == UPDATE:
                update = self.known.get(inner.operands[1])
                operations += max((a.elements for a in update.arrays), default=0) if update else 0
            elif inner.opcode in ("reduce", "reduce-window", "sort", "scatter"):
                arrays = self._operand_arrays(inner)
                operations += max((a.elements for a in arrays), default=0)
            else:
                operations += max((a.elements for a in inner.arrays), default=0)
        if one.opcode in _MOVES:
            operations = 0
        return operations / self.rates.vector_ops_per_s


def scattered(body: Sequence[Instruction]) -> list[Instruction]:
    """The all-reduces of a computation that keeps a part of each, as libtpu's reduce-scatters."""
    keeps = any(one.opcode == "dynamic-slice" for one in body)
    return [one for one in body if keeps and one.opcode == "all-reduce"]


def _trips(one: Instruction, module: Module) -> int:
    """How often a loop runs: as XLA says, else by its condition's only limit, else once.

    A counter of 64 bits is two of 32 for a TPU, of which the higher one is compared with 0.
    """
    match = _TRIPS.search(one.text)
    if match:
        return int(match[1])
    found = (
        re.search(r"constant\((\d+)\)", inner.text)
        for inner in module.computations.get(one.condition, [])
        if inner.opcode == "constant"
    )
    limits = {int(limit[1]) for limit in found if limit} - {0}
    return limits.pop() if len(limits) == 1 else 1


def _rate_of(dtype: str) -> str:
    if dtype.startswith("f8"):
        return "fp8"
    if dtype in ("s8", "u8", "s4", "u4"):
        return "int8"
    return "f32" if dtype in ("f32", "f64") else "bf16"
