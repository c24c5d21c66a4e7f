# SPDX-License-Identifier: Apache-2.0
"""The step of a script that has no optimizer: one call of its model.

Serving, evaluation and benchmarks call a model again and again. The module that multiplies most,
among those that no other module calls, is taken for the model; from the end of its last call but
one to the end of its last call is a step, with whatever the script does between two calls, such as
choosing the next token.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torchtpu_core.plan import module_hooks
from torchtpu_core.plan.records import Op, Recording
from torchtpu_core.units import format_flops


@dataclass(slots=True)
class _Calls:
    """Calls of one module, as operators recorded before and after each."""

    name: str
    spans: list[tuple[int, int]] = field(default_factory=list)

    def flops(self, ops: list[Op]) -> list[int]:
        """Floating-point operations of matrix products, by call."""
        return [
            sum(2 * math.prod(product) for op in ops[slice(*span)] for product in op.products)
            for span in self.spans
        ]


class ModuleCalls:
    """Follows the calls of modules that no other module makes."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._calls: dict[int, _Calls] = {}
        self._kept: list[nn.Module] = []  # identifiers are not used again
        self._inside: list[tuple[int, int]] = []

    def followed(self) -> contextlib.AbstractContextManager[None]:
        """While the script runs."""
        return module_hooks.followed(self._begins, self._ends)

    def _begins(self, module: nn.Module, _: Any) -> None:
        self._inside.append((id(module), len(self._recording.ops)))

    def _ends(self, module: nn.Module, *_: Any) -> None:
        number, start = self._inside.pop()
        if self._inside or start == len(self._recording.ops):
            return
        if number not in self._calls:
            self._kept.append(module)
            self._calls[number] = _Calls(type(module).__name__)
        self._calls[number].spans.append((start, len(self._recording.ops)))

    def choose_step(self) -> str:
        """Makes a call the recording's step.

        Returns:
            What was chosen, as a sentence; nothing if no module was called.
        """
        recording = self._recording
        if not self._calls:
            return ""
        model = max(
            self._calls.values(), key=lambda one: (sum(one.flops(recording.ops)), len(one.spans))
        )
        (start, end), count = model.spans[-1], len(model.spans)
        recording.called = model.name
        if count == 1:
            recording.step_ends = [start, len(recording.ops)]
            return (
                f"no optimizer step was seen: a step is the script from its call of {model.name} on"
            )
        recording.step_ends = [model.spans[-2][1], end]
        flops = model.flops(recording.ops)
        return (
            f"no optimizer step was seen: a step is the last of {count:,} calls of {model.name}"
            f"{_others(flops)}"
        )


def _others(flops: list[int]) -> str:
    """That other calls are larger or smaller, in words."""
    if min(flops) == max(flops):
        return ""
    first, last, total = (format_flops(count) for count in (flops[0], flops[-1], sum(flops)))
    return f"; matrix products of the first: {first}, of the last: {last}, of all: {total}"
