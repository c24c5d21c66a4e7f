# SPDX-License-Identifier: Apache-2.0
"""Where a training step ends, in scripts of one optimizer and of several.

A step is over when each optimizer has stepped once more: the generator's and the
discriminator's, or one for each parameter. One that is never used is not waited for.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections import Counter
from typing import Any

from torchtpu_core.plan.calls import Call
from torchtpu_core.plan.records import Op, Phase, Recording
from torchtpu_core.units import format_flops

STEPS = 2
#: How often an optimizer steps before those that never did are given up.
PATIENCE = 10

#: How much more the first step may multiply than the second before it is told.
MORE_AT_FIRST = 1.5


def name_gradients(recording: Recording) -> None:
    """Gives what was recorded since a backward pass to the gradients, as an optimizer steps.

    Until then it could have been the forward pass of the next micro-batch.
    """
    for recorded in (recording.ops, recording.calls):
        rest = list(itertools.takewhile(_is_forward, reversed(recorded)))
        before = recorded[-len(rest) - 1 : len(recorded) - len(rest)]
        if before and before[0].phase is Phase.BACKWARD:
            for one in rest:
                one.phase = Phase.GRADIENTS


def _is_forward(one: Op | Call) -> bool:
    return one.phase is Phase.FORWARD


def outside_the_step(recording: Recording) -> str:
    """What the script multiplies before its first step and not in its second, in a sentence.

    Rollouts of reinforcement learning, evaluations before training and the like; nothing if there
    is little of it.
    """
    if len(recording.step_ends) < STEPS:
        return ""
    end, start = recording.step_ends[0], recording.step()
    first, step = _flops(recording.ops[:end]), _flops(recording.ops[slice(*start)])
    more = first - step
    total, usual = sum(first.values()), sum(step.values())
    if total <= MORE_AT_FIRST * usual:
        return ""
    lines = ", ".join(line for line, _ in more.most_common(2))
    return (
        f"matrix products before the script's first step end: {format_flops(total)}, in the step "
        f"that is planned: {format_flops(usual)}; what it does between steps now and then, as a "
        f"rollout or an evaluation ({lines}), is outside the figures"
    )


def _flops(ops: list[Op]) -> Counter[str]:
    """Floating-point operations of matrix products, by the user's line."""
    found: Counter[str] = Counter()
    for op in ops:
        found[op.line] += sum(2 * math.prod(product) for product in op.products)
    return found


class Steps:
    """Counts the steps of a script's optimizers."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._history: list[tuple[int, int]] = []  # (optimizer's number, operators before its end)
        self._next = 0

    def made(self, optimizer: Any) -> None:
        """An optimizer exists, so its model is made.

        What that left in reference cycles, as DTensor leaves the parameters that it split, Python
        frees at some time before the step that is planned.
        """
        if not self._next:
            gc.collect()
        self._next += 1
        self._numbers[optimizer] = self._next

    def done(self, optimizer: Any, operators: int) -> bool:
        """An optimizer has stepped.

        Args:
            optimizer: it.
            operators: how many operators are recorded by now.

        Returns:
            Whether `STEPS` steps are over.
        """
        if optimizer not in self._numbers:
            self.made(optimizer)
        self._history.append((self._numbers[optimizer], operators))
        counts = self._counts()
        waited_for = set(self._numbers.values()) - set(counts)
        if waited_for and max(counts.values()) < PATIENCE:
            return False
        return min(counts.values()) >= STEPS

    def ends(self) -> list[int]:
        """The operators before the end of each step."""
        users = set(self._counts())
        found: list[int] = []
        counts = dict.fromkeys(users, 0)
        for number, operators in self._history:
            counts[number] += 1
            if min(counts.values()) > len(found):
                found.append(operators)
        return found

    def _counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for number, _ in self._history:
            counts[number] = counts.get(number, 0) + 1
        return counts
