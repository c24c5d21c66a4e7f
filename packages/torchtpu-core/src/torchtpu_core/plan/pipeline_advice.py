# SPDX-License-Identifier: Apache-2.0
"""What would make the step of a pipeline shorter: even stages, more microbatches.

Other advice changes the work of one rank, and a pipeline is no faster than its busiest stage: it
is that stage's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtpu_core.plan.advice import SMALLEST_GAIN, Advice
from torchtpu_core.plan.join import Joined
from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.result import Plan
from torchtpu_core.plan.schedule import Pricer, placing


def is_pipeline(plans: Sequence[Plan]) -> bool:
    """Whether roles send each other messages."""
    return any(op.peer >= 0 for plan in plans for op in plan.ops)


def advise_pipeline(
    plans: Sequence[Plan], alone: Sequence[Schedule], step_s: float, pricer: Pricer
) -> list[Advice]:
    """Changes that pay, largest simulated gain first.

    Args:
        plans: one per stage.
        alone: their schedules if they had to wait for nobody.
        step_s: simulated seconds of the step in which they wait for each other.
        pricer: prices their operators.
    """
    busy_s = [placed.step_s for placed in alone]
    busiest = max(range(len(plans)), key=busy_s.__getitem__)
    found = [
        Advice(
            title="Move work from the busiest stage of the pipeline to others",
            why=f"the work of {_ranks(plans[busiest])} takes {busy_s[busiest] / step_s:.0%} of "
            f"the step, that of the average stage {_mean(plans, busy_s) / step_s:.0%}; the gain "
            "is that of even stages",
            lines=(),
            gain_s=step_s - _even_step_s(plans, busy_s, pricer),
            part=0.0,
        ),
        Advice(
            title="Run twice the microbatches in a step",
            why=f"{1 - busy_s[busiest] / step_s:.0%} of the step is the pipeline filling and "
            "emptying, however many microbatches there are; the gain is for the same work",
            lines=(),
            gain_s=(step_s - busy_s[busiest]) / 2,
            part=0.0,
        ),
        *plans[busiest].advised(alone[busiest], pricer),
    ]
    shares = [replace(item, part=item.gain_s / max(step_s, 1e-30)) for item in found]
    kept = [item for item in shares if item.part >= SMALLEST_GAIN]
    return sorted(kept, key=lambda item: -item.gain_s)


def _ranks(plan: Plan) -> str:
    first, last = plan.recording.ranks[0], plan.recording.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _mean(plans: Sequence[Plan], busy_s: Sequence[float]) -> float:
    """Seconds of work of the average rank."""
    ranks = [len(plan.recording.ranks) for plan in plans]
    return sum(n * spent for n, spent in zip(ranks, busy_s, strict=True)) / sum(ranks)


def _even_step_s(plans: Sequence[Plan], busy_s: Sequence[float], pricer: Pricer) -> float:
    """The step if each stage's work took as long as the average's."""
    role_of = [0] * plans[0].recording.world_size
    for number, plan in enumerate(plans):
        for rank in plan.recording.ranks:
            role_of[rank] = number
    mean = _mean(plans, busy_s)
    paces = [mean / max(spent, 1e-30) for spent in busy_s]
    placings = [placing(p.ops, p.fusion, pricer, x) for p, x in zip(plans, paces, strict=True)]
    return max(placed.step_s for placed in Joined(role_of).run(placings))
