# SPDX-License-Identifier: Apache-2.0
"""What keeps the TensorCore waiting: the host, other shapes, and rows looked up one by one.

Reads and operators of the host are in the schedule, so that the step without them is the
price of the change. A new shape means a compilation, which no step shows: its time is an
estimate of the host's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.plan.changed_step import Found, Step, without
from torchtpu_core.plan.records import CHECK, Op, Phase, Work
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.units import format_bytes

COMPILE_S_PER_OPERATOR = Sourced(
    4.5e-3,
    "XLA's compile time per operator of a training step on a CPU core, measured for decision 5",
    Status.MEASURED,
)


def _lines(step: Step, chosen: Sequence[int]) -> tuple[str, ...]:
    return tuple(line for line, _ in Counter(step.ops[i].line for i in chosen).most_common(3))


def _host_reads(step: Step) -> Iterator[Found]:
    """Values that the host reads: the device runs dry while it waits."""
    reads = [i for i, op in enumerate(step.ops) if op.work is Work.HOST and not op.host_bytes]
    checks = sum(step.ops[i].name == CHECK for i in reads)
    if reads:
        yield (
            "Read values from the device less often",
            f"reads in a step: {len(reads)}, each at least {cal.HOST_START_S.value * 1e6:.0f} us "
            "in which the device waits; log every n-th step, or keep sums on the device"
            + (
                f"; {checks} check distributions, which validate_args=False leaves out"
                * (checks > 0)
            ),
            _lines(step, reads),
            without(step, reads),
        )


def _fallbacks(step: Step) -> Iterator[Found]:
    """Operators without a lowering: their operands go to the host and the results come back."""
    found = [i for i, op in enumerate(step.ops) if op.work is Work.HOST and op.host_bytes]
    if found:
        counts = Counter(step.ops[i].name for i in found)
        names = ", ".join(name for name, _ in counts.most_common(3))
        moved = sum(step.ops[i].host_bytes for i in found)
        yield (
            "Replace operators that run on the host",
            f"no form on the device: {names}; it waits {len(found)} times a step, for "
            f"{format_bytes(moved)} to the host and back",
            _lines(step, found),
            without(step, found),
        )


def _other_shapes(step: Step) -> Iterator[Found]:
    """Shapes that changed from one step to the next: each new one is compiled."""
    ends = [0, *step.recording.step_ends]
    if len(ends) < 3:
        return
    second = _forward(step.ops)
    # The step before may have made the model as well, ahead of its own operators.
    first = _forward(step.recording.ops[ends[-3] : ends[-2]])[-len(second) :]
    if [op.name for op in first] != [op.name for op in second]:
        return
    other = [
        op
        for before, op in zip(first, second, strict=True)
        if (before.read_bytes, before.write_bytes) != (op.read_bytes, op.write_bytes)
    ]
    if other:
        cost = COMPILE_S_PER_OPERATOR.value * len(step.ops)
        yield (
            "Keep shapes the same from step to step",
            f"operators that had other shapes in the step before: {len(other)}; each new shape is "
            f"compiled, about {cost:.1f} s of the host for this step, which is not in its time. "
            "Pad batches to a few sizes, or drop the last one",
            tuple(dict.fromkeys(op.line for op in other))[:3],
            step.placed.step_s - cost,
        )


def _forward(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.phase is Phase.FORWARD and op.work is not Work.HOST]


RULES: tuple[Callable[[Step], Iterator[Found]], ...] = (
    _host_reads,
    _fallbacks,
    _other_shapes,
)
