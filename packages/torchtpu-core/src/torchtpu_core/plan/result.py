# SPDX-License-Identifier: Apache-2.0
"""A plan: what a script would do on a slice, with all figures simulated."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtpu_core.ici.faults import NO_FAULTS, Faults
from torchtpu_core.ici.slices import Slice
from torchtpu_core.plan.advice import Advice, advise
from torchtpu_core.plan.fusion import Fusion
from torchtpu_core.plan.gradient_sums import gradient_sums
from torchtpu_core.plan.links import Link
from torchtpu_core.plan.memory import Memory
from torchtpu_core.plan.placed import Schedule, Unit
from torchtpu_core.plan.records import Op, Phase, Recording, Work
from torchtpu_core.plan.schedule import Pricer

#: Parts of the critical path that are waiting for ranks with another role.
ROLE_WAITS = ("waiting for another rank", "waiting for the slowest rank")


@dataclass(slots=True)
class Exchanged:
    """What the runs of one collective move.

    Attributes:
        runs: how often it runs in a step.
        put_in_bytes: operands of one rank: its shard of a gather, else the whole.
        sent_bytes: what a rank sends to others, as rings do.
        seconds: simulated, of all runs.
    """

    runs: int = 0
    put_in_bytes: float = 0.0
    sent_bytes: float = 0.0
    seconds: float = 0.0


def sent_over_put_in(kind: str, ranks: int) -> float:
    """Bytes that a rank of a ring sends over those it puts in.

    >>> sent_over_put_in("all_gather", 4), sent_over_put_in("all_reduce", 4)
    (3, 1.5)
    """
    if kind == "all_gather":
        return ranks - 1
    part = 1 - 1 / max(ranks, 1)
    return {"all_reduce": 2 * part, "reduce_scatter": part, "all_to_all": part}.get(kind, 1.0)


@dataclass(slots=True)
class Role:
    """What ranks that do the same do in a step, beside the others.

    Attributes:
        ranks: the ranks.
        plan: theirs.
        end_s: when they are done; they then wait for the slowest.
    """

    ranks: tuple[int, ...]
    plan: Plan
    end_s: float

    @property
    def name(self) -> str:
        """The ranks for people.

        >>> Role((0, 1, 2, 3, 8), None, 0.0).name
        'ranks 0-3, 8'
        """
        spans: list[list[int]] = []
        for rank in self.ranks:
            if spans and rank == spans[-1][-1] + 1:
                spans[-1] = [spans[-1][0], rank]
            else:
                spans.append([rank])
        shown = ["-".join(map(str, span)) for span in spans[:4]]
        more = ", ..." if len(spans) > 4 else ""
        return f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(shown)}{more}"

    @property
    def waits_s(self) -> float:
        """Seconds in which their core waits for other ranks: the pipeline's bubble."""
        return sum(
            spent for name, spent in self.plan.schedule.critical.items() if name in ROLE_WAITS
        )


@dataclass(slots=True)
class Plan:
    """What was recorded and what it would cost.

    Attributes:
        recording: what the script did.
        where: one slice.
        slices: how many.
        ops: the operators of the step.
        fusion: what they move through HBM.
        schedule: when they run.
        memory: HBM over the step.
        advice: changes with their gains, largest first, by the simulator's schedule.
        compiler: who made the schedule: ``simulator`` or ``xla-tpu``.
        compiler_report: memory, fusions and collectives, of XLA's TPU compiler.
        faults: what is wrong with the slices.
        roles: where ranks differ, what each kind does; the rest of the plan is the slowest's.
    """

    recording: Recording
    where: Slice
    slices: int
    ops: list[Op]
    fusion: Fusion
    schedule: Schedule
    memory: Memory
    advice: list[Advice] = field(default_factory=list)
    compiler: str = "simulator"
    compiler_report: dict[str, Any] = field(default_factory=dict)
    faults: Faults = NO_FAULTS
    roles: list[Role] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether every rank's memory suffices."""
        return all(plan.memory.fits for plan in self.all_roles)

    @property
    def all_roles(self) -> list[Plan]:
        """One plan for each role; this one alone where ranks do not differ."""
        return [role.plan for role in self.roles] or [self]

    def advised(self, alone: Schedule, pricer: Pricer) -> list[Advice]:
        """Advice on the work of its rank, by its schedule if it had to wait for nobody."""
        return advise(self.ops, self.fusion, pricer, alone, self.memory, self.recording)

    @property
    def step_s(self) -> float:
        """Simulated seconds of a step."""
        return self.schedule.step_s

    @property
    def tokens_per_rank(self) -> int:
        """Elements that the step's first embedding looks up, in all microbatches; 0 without one.

        What is looked up without gradients, as in an evaluation between steps, counts only
        where nothing is looked up with them. One for each image of a convolutional network is a
        label.
        """
        looked_up = [op for op in self.ops if op.name == "embedding" and op.phase is Phase.FORWARD]
        looked_up = [op for op in looked_up if op.differentiable] or looked_up
        first = looked_up[:1]
        count = sum(
            op.looked_up
            for op in looked_up
            if (op.line, self._table_bytes(op)) == (first[0].line, self._table_bytes(first[0]))
        )
        convolves = any(op.name == "convolution" and op.phase is Phase.FORWARD for op in self.ops)
        return 0 if convolves and count <= self.samples_per_rank else count

    @property
    def samples_per_rank(self) -> int:
        """Samples that the step's first layer reads, in all microbatches; 0 without one.

        An evaluation between steps counts as it does for tokens.
        """
        found = [op for op in self.ops if op.samples and op.phase is Phase.FORWARD]
        found = [op for op in found if op.differentiable] or found
        # The same weight again is the next microbatch.
        return sum(op.samples for op in found if _layer(op) == _layer(found[0]))

    def _table_bytes(self, op: Op) -> int:
        """Size of what an embedding looks rows up in."""
        return self.recording.blocks[op.reads[0]].size_bytes

    @property
    def data_parallel(self) -> int:
        """Ranks with different data: those among which gradients are summed."""
        sizes = {len(op.group) for op in gradient_sums(self.ops)}
        distinct = math.prod(sizes)
        return min(distinct, self.recording.world_size)

    @property
    def tokens_per_s(self) -> float:
        """Simulated tokens per second of all ranks."""
        if not self.step_s:
            return 0.0
        return max(p.tokens_per_rank * p.data_parallel for p in self.all_roles) / self.step_s

    @property
    def samples_per_s(self) -> float:
        """Simulated samples per second of all ranks."""
        if not self.step_s:
            return 0.0
        return max(p.samples_per_rank * p.data_parallel for p in self.all_roles) / self.step_s

    def flops(self, *, again: bool) -> float:
        """Matrix operations of one device, with or without those that are computed again."""
        return sum(
            item.flops if again else item.flops * (1 - item.op.again)
            for item in self.schedule.placed
            if again or item.op.phase is not Phase.RECOMPUTE
        )

    @property
    def peak_flops_per_s(self) -> float:
        """bf16 peak of one device."""
        chip = self.where.chip
        return chip.figure("peak_bf16_flops_per_s") / (chip.devices_per_chip or 1)

    @property
    def mfu(self) -> float:
        """Model operations, recomputed ones left out, over the peak's."""
        return self._part_of_peak(again=False)

    @property
    def hfu(self) -> float:
        """All operations over the peak's."""
        return self._part_of_peak(again=True)

    def _part_of_peak(self, *, again: bool) -> float:
        """Matrix operations of all ranks over what they could do in the step."""
        if not self.step_s:
            return 0.0
        ranks = [len(role.ranks) for role in self.roles] or [1]
        done = sum(n * p.flops(again=again) for n, p in zip(ranks, self.all_roles, strict=True))
        return done / (sum(ranks) * self.step_s * self.peak_flops_per_s)

    def by_work(self) -> dict[str, float]:
        """Simulated seconds of the core by phase and kind of work."""
        seconds: dict[str, float] = defaultdict(float)
        for item in self.schedule.placed:
            if item.unit is Unit.CORE:
                seconds[f"{item.op.phase.value}: {item.op.work.value}"] += item.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    def by_collective(self) -> dict[str, Exchanged]:
        """What each collective moves, by kind and ranks."""
        found: dict[str, Exchanged] = {}
        for item in self.schedule.placed:
            if item.op.work is Work.COLLECTIVE:
                op, ranks = item.op, len(item.op.group)
                one = found.setdefault(f"{op.collective} of {ranks} ranks", Exchanged())
                one.runs += 1
                one.put_in_bytes += op.moved_bytes
                one.sent_bytes += self._sent_bytes(op)
                one.seconds += item.seconds
        return found

    def _sent_bytes(self, op: Op) -> float:
        """Bytes that the recorded rank sends to others in a collective."""
        if op.parts is None:
            return op.moved_bytes * sent_over_put_in(op.collective, len(op.group))
        return sum(op.sent) - op.sent[op.group.index(self.recording.rank)]

    def slowest_lines(self, count: int = 12) -> list[tuple[str, float]]:
        """The user's lines that take most of the core's time, a thousandth of the step at least."""
        seconds: dict[str, float] = defaultdict(float)
        for item in self.schedule.placed:
            if item.unit is Unit.CORE:
                seconds[item.op.line] += item.seconds
        ranked = sorted(seconds.items(), key=lambda item: -item[1])[:count]
        return [(line, spent) for line, spent in ranked if spent >= self.step_s / 1000]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the recording, host reads first."""
        start = self.recording.step()[0]
        reads = [
            f"{relative(read.line)} reads {read.what}, {read.times:,} "
            f"time{'' if read.times == 1 else 's'}{', before the step' * (read.last < start)}; "
            "it got a placeholder"
            for read in self.recording.reads.values()
        ]
        return reads + self.recording.notes

    def as_json(self) -> dict[str, Any]:
        """All figures, for programs."""
        memory = self.memory
        return {
            "simulated": True,
            "compiler": self.compiler,
            "compiler_report": self.compiler_report,
            "script": self.recording.script,
            "target": self.where.name,
            "slices": self.slices,
            "faults": self.faults.described(),
            "chips": self.where.torus.chips * self.slices,
            "ranks": self.recording.world_size,
            "step_s": self.step_s,
            "tokens_per_rank_and_step": self.tokens_per_rank,
            "data_parallel_ranks": self.data_parallel,
            "tokens_per_s": self.tokens_per_s,
            "samples_per_rank_and_step": self.samples_per_rank,
            "samples_per_s": self.samples_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "hbm": {
                "peak_bytes": memory.peak_bytes,
                "limit_bytes": memory.limit_bytes,
                "fits": memory.fits,
                "to_fit": memory.to_fit,
                "at_peak": {str(name): size for name, size in memory.at_peak.items()},
                "lines": [
                    {"category": str(category), "line": line, "bytes": size}
                    for category, line, size in memory.lines[:20]
                ],
            },
            "communication": {
                "exposed_s": self.schedule.exposed_s,
                "hidden_s": self.schedule.hidden_s,
                "collectives": {
                    name: {
                        "runs": one.runs,
                        "bytes_per_rank": one.put_in_bytes,
                        "sent_bytes_per_rank": one.sent_bytes,
                        "seconds": one.seconds,
                    }
                    for name, one in self.by_collective().items()
                },
                "busiest_link": _link(self.schedule.busiest),
                "links": [_link(link) for link in self.schedule.links],
            },
            "roles": [
                {
                    "ranks": list(role.ranks),
                    "recorded_rank": role.plan.recording.rank,
                    "end_s": role.end_s,
                    "waits_s": role.waits_s,
                    "hbm_peak_bytes": role.plan.memory.peak_bytes,
                    "fits": role.plan.memory.fits,
                }
                for role in self.roles
            ],
            "seconds_by_work": self.by_work(),
            "critical_path": self.schedule.critical,
            "slowest_lines": dict(self.slowest_lines()),
            "advice": [item.as_json() for item in self.advice],
            "host_reads": {read.line: read.what for read in self.recording.reads.values()},
            "notes": self.recording.notes,
        }


def _layer(op: Op) -> tuple[Any, ...]:
    """What calls of one layer have in common: linear layers of a line may be of one shape."""
    return op.line, op.products, None if op.name == "convolution" else op.reads[-1]


def _link(link: Link) -> dict[str, Any]:
    """Simulated traffic of a kind of links; bytes and load are those of the busiest one."""
    return {
        "name": link.name,
        "busiest": link.which,
        "from_chip": link.source,
        "to_chip": link.target,
        "alike": link.alike,
        "bytes": link.sent_bytes,
        "load": link.load,
        "links": link.count,
    }


def relative(line: str) -> str:
    """A user's line, from the working directory where it lies below it."""
    path, _, number = line.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}:{number}"
    except ValueError:
        return line
