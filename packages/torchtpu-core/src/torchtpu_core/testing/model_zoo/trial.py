# SPDX-License-Identifier: Apache-2.0
"""One architecture in one mode: the same steps on the CPU and on the device, compared.

What is compared: the outputs in evaluation, then for each training step the loss, and after the
last step every gradient and every parameter and buffer. Each tensor is divided by its own largest
magnitude before it meets the project's tolerance, because gradients of deep models are far smaller
than that tolerance's absolute part.
"""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchtpu_core.testing.model_zoo.architectures import Architecture
from torchtpu_core.testing.model_zoo.building import build, moved
from torchtpu_core.testing.op_compare import compare

#: AdamW divides by the gradient's magnitude plus this: with the default of 1e-8 the sign of a
#: gradient that is only rounding noise would decide a whole step.
EPSILON = 1e-3
STEPS = {"fused": 4, "strict": 2, "compile": 3}
#: A tensor that is this much smaller than the largest of its kind is compared with the latter.
_NOISE = 1e-4

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class Outcome:
    """What one architecture did in one mode.

    Attributes:
        name: the architecture.
        family: its kind.
        mode: ``fused``, ``strict`` or ``compile``.
        status: ``pass``, ``wrong`` or ``error``.
        detail: the first difference or the error.
        seconds: wall time on the device, compilation included.
        compiles: programs compiled, those found in the cache on disk not among them.
        late_compiles: programs asked for in the last step.
        ops: operators recorded in the last step.
        host_reads: times the last step waited for the host to read a value.
        graph_breaks: reasons, each once.
        fallbacks: calls on the host by overload.
        warnings: what was warned of, each once.
    """

    name: str
    family: str
    mode: str
    status: str = "pass"
    detail: str = ""
    seconds: float = 0.0
    compiles: int = 0
    late_compiles: int = 0
    ops: int = 0
    host_reads: int = 0
    graph_breaks: list[str] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def outputs_of(model: Callable[..., Any], batch: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors in what a model returns, caches left out."""
    leaves = pytree.tree_leaves(dict(model(**batch)))
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def loss_of(model: Callable[..., Any], batch: dict[str, Any]) -> torch.Tensor:
    """The model's own loss, or the mean square of its outputs if it has none."""
    result = model(**batch)
    loss = result.get("loss")
    if loss is not None:
        return loss.mean()
    leaves = [x for x in pytree.tree_leaves(dict(result)) if isinstance(x, torch.Tensor)]
    return sum((x**2).mean() for x in leaves if x.is_floating_point() and x.requires_grad)


def run(
    model: nn.Module,
    batch: dict[str, Any],
    steps: int,
    *,
    call: Callable[..., Any] | None = None,
    after: Callable[[int], None] = lambda step: None,
) -> Tensors:
    """Evaluate, train, and return by name all that is to be compared.

    Args:
        model: whose parameters are trained.
        batch: the same in every step.
        steps: how many steps are trained.
        call: what to call in place of the model, such as its compiled form.
        after: called with the number of the step that ended.
    """
    call = model if call is None else call
    found: Tensors = {}
    model.eval()
    with torch.no_grad():
        outputs = outputs_of(call, batch)
    found |= {f"output {i}": x.detach() for i, x in enumerate(outputs)}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPSILON)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(call, batch)
        loss.backward()
        optimizer.step()
        found[f"loss {step}"] = loss.detach()
        after(step)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad
        found[f"parameter {name}"] = parameter.detach()
    found |= {f"buffer {name}": x for name, x in model.named_buffers()}
    return found


def differences(actual: Tensors, expected: Tensors, exact: Callable[[], Tensors]) -> list[str]:
    """What differs beyond the tolerance, the first line of each complaint."""
    if actual.keys() != expected.keys():
        return [f"different tensors: {sorted(actual.keys() ^ expected.keys())[:4]}"]
    largest: dict[str, float] = {}
    for name, x in expected.items():
        kind = name.partition(" ")[0]
        largest[kind] = max(largest.get(kind, 0.0), _magnitude(x))
    found = []
    for name, x in expected.items():
        floor = _NOISE * largest[name.partition(" ")[0]]
        scale = max(_magnitude(x), floor) if x.is_floating_point() else 1
        scale = scale or 1
        in_double = partial(_exact_over, exact, name, scale)
        try:
            compare(_over(actual[name].cpu(), scale), _over(x, scale), exact=in_double)
        except AssertionError as error:
            found.append(f"{name}: {' '.join(str(error).split())[:300]}")
    return found


def _magnitude(x: torch.Tensor) -> float:
    finite = x[torch.isfinite(x)] if x.is_floating_point() else x
    return float(finite.abs().max()) if finite.numel() else 0.0


def _exact_over(exact: Callable[[], Tensors], name: str, scale: float) -> torch.Tensor:
    return _over(exact()[name], scale)


def _over(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x / scale if x.is_floating_point() else x


class _Meter:
    """Counts what the last step of a run did on the device."""

    def __init__(self, outcome: Outcome, steps: int) -> None:
        self.outcome, self.steps, self.before = outcome, steps, torch.tpu.counters()
        self.start = self.before

    def __call__(self, step: int) -> None:
        torch.tpu.wait_for_compiles()
        now = torch.tpu.counters()
        if step == self.steps - 1:
            outcome, before = self.outcome, self.before
            outcome.late_compiles = now["compiles"] - before["compiles"]
            outcome.ops = now["ops"] - before["ops"]
            reads = [x["flushes"].get("host read", 0) for x in (now, before)]
            outcome.host_reads = reads[0] - reads[1]
        self.before = now

    def close(self) -> None:
        """Write down what the whole run did."""
        now, start = torch.tpu.counters(), self.start
        found = {k: n - start["fallbacks"].get(k, 0) for k, n in now["fallbacks"].items()}
        self.outcome.fallbacks = {k: n for k, n in found.items() if n}
        self.outcome.compiles = now["compiles"] - start["compiles"]


def try_out(architecture: Architecture, mode: str) -> Outcome:
    """Run one architecture in one mode on both devices and compare."""
    outcome = Outcome(architecture.name, architecture.family, mode)
    steps = STEPS[mode]
    try:
        model, batch = build(architecture)
        copies = copy.deepcopy(model), copy.deepcopy(model)
        expected = run(model, batch, steps)
        actual = _on_device(copies[0], batch, outcome)
        exact: list[Tensors] = []

        def in_double() -> Tensors:
            if not exact:
                wide = moved(batch, torch.float64)
                torch.set_default_dtype(torch.float64)  # losses make tensors of their own
                try:
                    exact.append(run(copies[1].double(), wide, steps))
                finally:
                    torch.set_default_dtype(torch.float32)
            return exact[0]

        if found := differences(actual, expected, in_double):
            outcome.status = "wrong"
            outcome.detail = f"{len(found)} of {len(expected)}: {found[0]}"
    except Exception as error:
        outcome.status = "error"
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        outcome.detail = f"{type(error).__name__}: {message[:700]} ({where.name})"
    return outcome


def _on_device(model: nn.Module, batch: dict[str, Any], outcome: Outcome) -> Tensors:
    """Run on the device in the outcome's mode and write down how it went."""
    steps, mode = STEPS[outcome.mode], outcome.mode
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    meter = _Meter(outcome, steps)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.tpu.set_eager_mode("strict" if mode == "strict" else "fused"):
                model, batch = model.to("tpu"), moved(batch, "tpu")
                call = torch.compile(model, backend="tpu") if mode == "compile" else model
                found = run(model, batch, steps, call=call, after=meter)
                return {name: x.cpu() for name, x in found.items()}
        finally:
            outcome.seconds = round(time.perf_counter() - began, 2)
            meter.close()
            outcome.warnings = sorted({str(w.message)[:300] for w in caught})
            breaks = torch._dynamo.utils.counters["graph_break"]
            outcome.graph_breaks = sorted({reason[:200] for reason in breaks})
