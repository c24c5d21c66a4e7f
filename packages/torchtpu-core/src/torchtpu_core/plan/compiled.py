# SPDX-License-Identifier: Apache-2.0
"""A plan from the program that XLA's own TPU compiler makes of the step.

The recorded step becomes one program of all ranks, which the compiler optimises, schedules
and places in memory, on a machine without a TPU. What is fused, what overlaps, which
algorithm a collective uses and how much HBM is taken are then the compiler's decisions;
times are still the simulator's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from torchtpu_core import xla_tpu
from torchtpu_core.errors import PlanError, TPUCompileError
from torchtpu_core.plan.compiled_roles import of_roles
from torchtpu_core.plan.links import traffic_of
from torchtpu_core.plan.memory import Memory, given_category
from torchtpu_core.plan.placed import Placed, Schedule, Unit
from torchtpu_core.plan.program import StepProgram, program_of
from torchtpu_core.plan.records import Category, Op, Phase, Recording, Work
from torchtpu_core.plan.result import Plan
from torchtpu_core.plan.schedule import Pricer
from torchtpu_core.targets import Target
from torchtpu_core.xla_tpu import spans
from torchtpu_core.xla_tpu.buffers import totals
from torchtpu_core.xla_tpu.compiling import Compiled, Progress
from torchtpu_core.xla_tpu.hlo import Instruction, Module, read
from torchtpu_core.xla_tpu.liveness import lives
from torchtpu_core.xla_tpu.timing import time_of

NAME = "xla-tpu"
_UNITS = {
    spans.CORE: Unit.CORE,
    spans.DMA: Unit.DMA,
    spans.ICI: Unit.ICI,
    spans.DCN: Unit.DCN,
}
_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}

_WAITS = {**_KINDS, spans.DMA: Unit.DMA.value}


def compiled_plan(
    plan: Plan, target: Target, *, timeout_s: float, progress: Progress | None = None
) -> Plan:
    """A plan with schedule and memory of the program that XLA's TPU compiler makes.

    Where ranks have different roles, each role's program is compiled, as one that all ranks run.

    Args:
        plan: the simulator's, its recordings with calls.
        target: the slice.
        timeout_s: how long the compiler may take.
        progress: told how it goes.

    Raises:
        PlanError: the step cannot be made one program, or does not fit.
        MissingExtraError: libtpu is not installed.
        TPUCompileError: the compiler refused it.
    """
    xla_tpu.require_libtpu("torchtpu plan --compiler xla-tpu")
    xla_tpu.topology_of(target, plan.slices)

    def one(part: Plan) -> Plan:
        return _compiled(part, target, timeout_s, progress)

    return of_roles(plan, one) if plan.roles else one(plan)


def _compiled(plan: Plan, target: Target, timeout_s: float, progress: Progress | None) -> Plan:
    """The plan of one program that all ranks run."""
    program = program_of(plan.recording, target)
    try:
        made = xla_tpu.compile_for(
            program.bytecode,
            target,
            slices=plan.slices,
            partitions=plan.recording.world_size,
            schedule_only=True,
            timeout_s=timeout_s,
            progress=progress,
        )
    except TPUCompileError as error:
        if error.out_of_memory:
            raise PlanError(xla_tpu.out_of_memory(error, target.name)) from error
        raise
    module = read(made.hlo)
    lines = _Lines(plan.recording)
    return replace(
        plan,
        compiler=NAME,
        compiler_report=xla_tpu.report_of(made),
        schedule=_schedule(made, plan, lines),
        memory=_memory(made, module, program, plan, lines),
    )


class _Lines:
    """Full paths of the user's lines, by their short forms in the program."""

    def __init__(self, recording: Recording) -> None:
        self._full = {op.line.rpartition("/")[2]: op.line for op in recording.ops}

    def of(self, short: str) -> str:
        """The line as the recording has it."""
        return self._full.get(short, short)


def _phase_of(instruction: Instruction) -> Phase:
    words = instruction.op_name.split("/")
    return next((phase for phase in Phase if phase.value in words), Phase.FORWARD)


def _schedule(made: Compiled, plan: Plan, lines: _Lines) -> Schedule:
    """The schedule in the plan's words."""
    run = time_of(made.hlo, plan.where, plan.slices)
    module = read(made.hlo)
    result = Schedule(step_s=run.step_s)
    critical: dict[str, float] = defaultdict(float)
    network = 0.0
    # Of what a loop runs the loop's place, or that of what went before it.
    places = {one.name: i for i, one in enumerate(module.computations.get(module.entry, []))}
    index = 0
    for span in run.spans:
        index = places.get(span.instruction.name, index)
        if span.bound in spans.OUTER:
            continue
        op = _op_of(span, module, lines)
        seconds = (span.end_s - span.start_s) * span.runs
        unit = _UNITS[span.unit]
        result.placed.append(
            Placed(
                op,
                index,
                unit,
                span.start_s,
                span.start_s + seconds,
                span.bound,
                span.flops * span.runs,
                span.hbm_bytes * span.runs,
            )
        )
        if span.collective is not None:
            network += seconds
            result.sent[op.collective, op.moved_bytes, op.group] += span.runs
            result.dcn_bytes += span.collective.dcn_bytes * span.runs
        elif unit is Unit.CORE:
            critical[f"{op.phase.value}: {op.work.value}"] += seconds
    for name, waited in run.waited_s.items():
        critical[f"waiting for {_WAITS.get(name, name)}"] += waited
    result.exposed_s = sum(s for n, s in run.waited_s.items() if n in _KINDS)
    result.hidden_s = max(0.0, network - result.exposed_s)
    result.critical = dict(sorted(critical.items(), key=lambda item: -item[1]))
    network_ = Pricer(plan.where, plan.slices).network
    if network_ is not None:
        result.traffic = traffic_of(result.sent, result.dcn_bytes, result.step_s, network_)
    return result


def _op_of(span: spans.Span, module: Module, lines: _Lines) -> Op:
    """A span's instruction as an operator of the plan."""
    one = span.instruction
    kind = one.opcode.removesuffix("-start")
    line = lines.of(module.line_of(one)) or "(no line of the script)"
    op = Op(one.name, Work.ELEMENTWISE, _phase_of(one), line)
    if span.collective is not None:
        op.work = Work.COLLECTIVE
        op.collective = "reduce_scatter" if kind == "fusion" else _KINDS.get(kind, "all_reduce")
        op.group, op.moved_bytes = span.group, span.moved_bytes
    elif span.flops:
        op.work = Work.MATMUL
    elif span.unit == spans.DMA or kind in ("copy", "transpose", "slice"):
        op.work = Work.MOVE
    return op


def _memory(
    made: Compiled, module: Module, program: StepProgram, plan: Plan, lines: _Lines
) -> Memory:
    """HBM over the schedule: operands and results throughout, temporaries while they live."""
    blocks, start = plan.recording.blocks, plan.recording.step()[0]
    entry = module.computations.get(module.entry, [])
    steps = len(entry) + 1
    curves = {category: [0] * steps for category in Category}
    by_line: dict[tuple[Category, str], int] = defaultdict(int)
    sums = totals(made.buffers)
    given = _argument_sizes(made, module)
    for place, size in zip(program.operands, given, strict=False):
        block = blocks[place.storage]
        category = given_category(block, start)
        curves[category] = [value + size for value in curves[category]]
        by_line[category, block.line] += size
    rest = sums["argument"] - sum(given[: len(program.operands)]) + sums["constant"]
    left = max(0, sums["output"] + rest)
    trains = any(op.phase is Phase.BACKWARD for op in plan.ops)
    made_by_step = Category.GRADIENTS if trains else Category.ACTIVATIONS
    curves[made_by_step] = [value + left for value in curves[made_by_step]]
    known = module.find()
    living = lives(made.buffers, module)
    phases = {one.name: _phase_of(one) for one in entry}
    backward = next((i for i, one in enumerate(entry) if _phase_of(one) is Phase.BACKWARD), steps)
    for life in living:
        kept = phases[life.name] is Phase.FORWARD and life.last >= backward
        category = Category.ACTIVATIONS if kept else Category.TEMPORARIES
        for index in range(life.first, min(life.last + 1, steps)):
            curves[category][index] += life.size_bytes
    moving = [
        curves[Category.ACTIVATIONS][i] + curves[Category.TEMPORARIES][i] for i in range(steps)
    ]
    peak = max(range(steps), key=moving.__getitem__)
    # What the compiler took beyond what lives at once: holes between buffers.
    fixed = sum(curve[peak] for curve in curves.values()) - moving[peak]
    total = sum(sums.values())
    holes = max(0, total - fixed - moving[peak])
    curves[Category.TEMPORARIES] = [value + holes for value in curves[Category.TEMPORARIES]]
    for life in living:
        if life.first <= peak <= life.last:
            kept = phases[life.name] is Phase.FORWARD and life.last >= backward
            category = Category.ACTIVATIONS if kept else Category.TEMPORARIES
            by_line[category, lines.of(module.line_of(known[life.name]))] += life.size_bytes
    return Memory(
        curves=curves,
        peak_index=peak,
        peak_bytes=total,
        at_peak={category: curve[peak] for category, curve in curves.items()},
        limit_bytes=plan.memory.limit_bytes,
        lines=sorted(
            ((category, line, size) for (category, line), size in by_line.items()),
            key=lambda row: -row[2],
        ),
    )


def _argument_sizes(made: Compiled, module: Module) -> list[int]:
    """Bytes of the parameters in their order, as the compiler laid them out."""
    entry = module.computations.get(module.entry, [])
    sizes: dict[int, int] = {}
    for one in entry:
        if one.opcode == "parameter":
            number = int(one.text.partition("parameter(")[2].partition(")")[0])
            sizes[number] = sum(array.size_bytes for array in one.arrays)
    return [sizes.get(i, 0) for i in range(len(sizes))]
