# SPDX-License-Identifier: Apache-2.0
"""A recorded step, and the price of the same step with other operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtpu_core.plan.fusion import Fusion
from torchtpu_core.plan.memory import Memory
from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.records import Op, Recording, Work
from torchtpu_core.plan.schedule import Pricer, schedule


@dataclass(slots=True)
class Step:
    """A step, and how to price a changed one."""

    ops: Sequence[Op]
    fusion: Fusion
    pricer: Pricer
    placed: Schedule
    memory: Memory
    recording: Recording

    def seconds_of(
        self,
        ops: Sequence[Op],
        moved: Sequence[float] | None = None,
        within: Sequence[float] | None = None,
    ) -> float:
        """Simulated seconds of a step with other operators in the same places.

        Args:
            ops: the operators.
            moved: what each moves through HBM, if not as before.
            within: what each reads and writes in VMEM, likewise.
        """
        fusion = replace(
            self.fusion,
            moved_bytes=list(self.fusion.moved_bytes if moved is None else moved),
            vmem_bytes=list(self.fusion.vmem_bytes if within is None else within),
        )
        return schedule(ops, fusion, self.pricer).step_s

    def lines(self, indices: Sequence[int], count: int = 3) -> tuple[str, ...]:
        """Lines of some operators, those that take longest first."""
        chosen = set(indices)
        seconds: dict[str, float] = defaultdict(float)
        for item in self.placed.placed:
            if item.index in chosen:
                seconds[item.op.line] += item.seconds
        return tuple(sorted(seconds, key=lambda line: -seconds[line])[:count])


#: Title, reason, lines and the simulated seconds of the changed step.
Found = tuple[str, str, tuple[str, ...], float]


def without(step: Step, chosen: Sequence[int]) -> float:
    """Seconds of the step in which some operators are free."""
    free = set(chosen)
    ops = [
        replace(op, work=Work.ELEMENTWISE, host_bytes=0) if i in free else op
        for i, op in enumerate(step.ops)
    ]
    moved, within = (
        [0.0 if i in free else size for i, size in enumerate(sizes)]
        for sizes in (step.fusion.moved_bytes, step.fusion.vmem_bytes)
    )
    return step.seconds_of(ops, moved, within)
