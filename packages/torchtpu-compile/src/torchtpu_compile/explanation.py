# SPDX-License-Identifier: Apache-2.0
"""What `torch.compile` made of a function: its graphs, why it broke, what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchtpu_compile import bounded_program, records, recurrent_notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The outcome of one traced call.

    Attributes:
        graph_count: graphs that Dynamo captured.
        breaks: why each graph but the last ended, with the user's line.
        programs: (name, seconds, why) of each program that was compiled.
        left_out: what runs eagerly without a graph break, with the user's line and the way out.
        true_sizes: why graphs with open sizes compile one program per size.
    """

    graph_count: int
    breaks: tuple[str, ...]
    programs: tuple[tuple[str, float, str], ...]
    left_out: tuple[str, ...]
    true_sizes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {len(self.breaks)} graph breaks"]
        lines += [f"  break: {reason}" for reason in self.breaks]
        lines += [f"  left out: {reason}" for reason in self.left_out]
        lines.append(f"{len(self.programs)} programs compiled")
        lines += [
            f"  {name}: {seconds * 1e3:.0f} ms, {why}" for name, seconds, why in self.programs
        ]
        lines += [f"  one program per size: {reason}" for reason in self.true_sizes]
        return "\n".join(lines)


def explain(function: Callable[..., Any]) -> Callable[..., Explanation]:
    """Call a function once under Dynamo and say what happened.

    Args:
        function: a function or module; a result of `torch.compile` is unwrapped.

    Returns:
        A function that takes the call's arguments. The call runs twice, once to see the
        graphs and once compiled, so arguments that it writes are written twice.

    Example:
        ``print(torch_tpu.compile.explain(model)(x))``
    """
    plain = getattr(function, "_orig_mod", None) or getattr(
        function, "_torchdynamo_orig_callable", function
    )

    def call(*args: Any, **kwargs: Any) -> Explanation:
        torch._dynamo.reset()
        seen = torch._dynamo.explain(plain)(*args, **kwargs)
        torch._dynamo.reset()
        refused = dict(bounded_program.reasons)
        left_out = dict(recurrent_notice.seen)
        recurrent_notice.seen.clear()
        with records.recording() as compiled:
            torch.compile(plain, backend="tpu")(*args, **kwargs)
            torch.tpu.synchronize()
        lines = list(recurrent_notice.seen)
        recurrent_notice.seen.update(left_out)
        return Explanation(
            graph_count=seen.graph_count,
            breaks=tuple(_reason(b) for b in seen.break_reasons),
            programs=tuple(compiled),
            left_out=tuple(recurrent_notice.advice(line) for line in lines),
            true_sizes=tuple(r for r in bounded_program.reasons if r not in refused),
        )

    return call


def _reason(reason: Any) -> str:
    text = str(reason.reason).strip().splitlines()[0]
    frames = list(reason.user_stack or ())
    if not frames:
        return text
    return f"{text} (called at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})"
