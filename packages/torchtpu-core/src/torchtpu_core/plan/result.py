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
from torchtpu_core.plan.fusion import Fusion, fuse
from torchtpu_core.plan.links import Link, traffic_of
from torchtpu_core.plan.memory import Memory, memory_of
from torchtpu_core.plan.placed import Schedule, Unit
from torchtpu_core.plan.records import Op, Phase, Recording, Work
from torchtpu_core.plan.schedule import Pricer, schedule


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

    @property
    def step_s(self) -> float:
        """Simulated seconds of a step."""
        return self.schedule.step_s

    @property
    def tokens_per_rank(self) -> int:
        """Elements that the first embedding of the step looks up; 0 without an embedding."""
        for op in self.ops:
            if op.name == "embedding" and op.phase is Phase.FORWARD:
                return op.looked_up
        return 0

    @property
    def data_parallel(self) -> int:
        """Ranks with different data: those among which gradients are summed."""
        sizes = {
            len(op.group): op.group
            for op in self.ops
            if op.work is Work.COLLECTIVE
            and op.phase is Phase.BACKWARD
            and op.name in ("_reduce_scatter_base_", "allreduce_", "allreduce_coalesced_")
            and op.moved_bytes > 1024
        }
        distinct = math.prod(sizes) if sizes else 1
        return min(distinct, self.recording.world_size)

    @property
    def tokens_per_s(self) -> float:
        """Simulated tokens per second of all ranks."""
        if not self.step_s:
            return 0.0
        return self.tokens_per_rank * self.data_parallel / self.step_s

    def flops(self, *phases: Phase) -> float:
        """Matrix operations of one device in some phases."""
        return sum(item.flops for item in self.schedule.placed if item.op.phase in phases)

    @property
    def peak_flops_per_s(self) -> float:
        """bf16 peak of one device."""
        chip = self.where.chip
        return chip.figure("peak_bf16_flops_per_s") / (chip.devices_per_chip or 1)

    @property
    def mfu(self) -> float:
        """Model operations, recomputed ones left out, over the peak's."""
        useful = self.flops(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        return useful / (self.step_s * self.peak_flops_per_s) if self.step_s else 0.0

    @property
    def hfu(self) -> float:
        """All operations over the peak's."""
        return self.flops(*Phase) / (self.step_s * self.peak_flops_per_s) if self.step_s else 0.0

    def by_work(self) -> dict[str, float]:
        """Simulated seconds of the core by phase and kind of work."""
        seconds: dict[str, float] = defaultdict(float)
        for item in self.schedule.placed:
            if item.unit is Unit.CORE:
                seconds[f"{item.op.phase.value}: {item.op.work.value}"] += item.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))

    def by_collective(self) -> dict[str, tuple[int, float, float]]:
        """Runs, bytes put in and simulated seconds of each collective, by kind and ranks."""
        found: dict[str, tuple[int, float, float]] = {}
        for item in self.schedule.placed:
            if item.op.work is Work.COLLECTIVE:
                name = f"{item.op.collective} of {len(item.op.group)} ranks"
                runs, moved, seconds = found.get(name, (0, 0.0, 0.0))
                found[name] = runs + 1, moved + item.op.moved_bytes, seconds + item.seconds
        return found

    def slowest_lines(self, count: int = 12) -> list[tuple[str, float]]:
        """The user's lines that take most of the core's time."""
        seconds: dict[str, float] = defaultdict(float)
        for item in self.schedule.placed:
            if item.unit is Unit.CORE:
                seconds[item.op.line] += item.seconds
        return sorted(seconds.items(), key=lambda item: -item[1])[:count]

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
                    name: {"runs": runs, "bytes_per_rank": moved, "seconds": seconds}
                    for name, (runs, moved, seconds) in self.by_collective().items()
                },
                "busiest_link": _link(self.schedule.busiest),
                "links": [_link(link) for link in self.schedule.links],
            },
            "seconds_by_work": self.by_work(),
            "critical_path": self.schedule.critical,
            "slowest_lines": dict(self.slowest_lines()),
            "advice": [item.as_json() for item in self.advice],
            "host_reads": {read.line: read.what for read in self.recording.reads.values()},
            "notes": self.recording.notes,
        }


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


def make_plan(
    recording: Recording,
    where: Slice,
    slices: int,
    f32_precision: str,
    faults: Faults = NO_FAULTS,
) -> Plan:
    """Prices a recording on a slice, or on several, with what is wrong with them."""
    start, end = recording.step()
    ops = recording.ops[start:end]
    pricer = Pricer(where, slices, f32_precision, faults)
    fusion = fuse(ops, recording.blocks, start)
    placed = schedule(ops, fusion, pricer)
    if pricer.network is not None and placed.step_s:
        placed.traffic = traffic_of(placed.sent, placed.dcn_bytes, placed.step_s, pricer.network)
    limit = where.chip.hbm_device_bytes
    memory = memory_of(recording.ops, recording.blocks, (start, end), fusion.inside, limit)
    advice = advise(ops, fusion, pricer, placed, memory, recording)
    return Plan(recording, where, slices, ops, fusion, placed, memory, advice, faults=faults)


def relative(line: str) -> str:
    """A user's line, from the working directory where it lies below it."""
    path, _, number = line.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}:{number}"
    except ValueError:
        return line
