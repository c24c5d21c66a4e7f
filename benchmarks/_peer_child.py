# SPDX-License-Identifier: Apache-2.0
"""One way to train, in a process of its own, that runs steps when it is told to.

    python benchmarks/_peer_child.py CANDIDATE MODEL

Run by `peers.py`. After eight steps it prints what they cost, as a line of JSON; then for each line
of its input, a number of steps, it runs them and prints what they took.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

#: One step, which has ended when it returns: its loss.
Step = Callable[[], float]
FIRST_STEPS = 8


def _torch_step(name: str, device: Any, backend: str = "", *, whole: bool = False) -> Step:
    """A step of plain PyTorch; a backend compiles loss and gradients, or the whole step."""
    import torch
    from _tasks import MODELS, optimizer_of

    model, batch, loss_of = MODELS[name]()
    model.to(device)
    batch = tuple(t.to(device) for t in batch)
    optimizer = optimizer_of(name, model)
    forward = partial(loss_of, model)
    if backend and not whole:
        forward = torch.compile(forward, backend=backend)

    def train() -> Any:
        optimizer.zero_grad()
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch.compile(train, backend=backend) if whole else train
    return lambda: float(run().item())


def _tpu(name: str, mode: str, backend: str = "", *, whole: bool = False) -> Step:
    import torch

    torch.tpu.set_eager_mode(mode)
    return _torch_step(name, "tpu", backend, whole=whole)


def _jax(name: str) -> Step:
    from train_steps import jax_step

    return jax_step(name)


def _torch_xla(name: str, backend: str = "") -> Step:
    os.environ["PJRT_DEVICE"] = "CPU"
    import torch_xla

    return _torch_step(name, torch_xla.device(), backend)


def _torchax(name: str) -> Step:
    """Its documented way to train: a functional step, `jax.jit`, and optax."""
    import optax
    import torch
    import torchax
    from _tasks import MODELS
    from torchax import interop, train

    model, batch, loss_of = MODELS[name]()
    torchax.enable_globally()
    model.to("jax")
    arrays = [t.to("jax") for t in batch]

    def forward(weights: Any, buffers: Any, args: Any) -> Any:
        def call(*given: Any) -> Any:
            return torch.func.functional_call(model, {**weights, **buffers}, given)

        return loss_of(call, *args)

    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    rates = {"resnet": optax.sgd(0.05, momentum=0.9)}
    optimizer = rates.get(name, optax.adamw(1e-3, weight_decay=1e-2))
    state = interop.call_jax(optimizer.init, weights)
    one = train.make_train_step(forward, lambda loss, _: loss, optimizer)
    run = interop.jax_jit(one, kwargs_for_jax_jit={"donate_argnums": (0, 2)})
    held = [weights, state]

    def step() -> float:
        loss, *held[:] = run(held[0], buffers, held[1], arrays, arrays[-1])
        return float(loss.item())

    return step


CANDIDATES: dict[str, Callable[[str], Step]] = {
    "tpu, fused": partial(_tpu, mode="fused"),
    "tpu, compiled": partial(_tpu, mode="fused", backend="tpu"),
    "tpu, compiled step": partial(_tpu, mode="fused", backend="tpu", whole=True),
    "tpu, strict": partial(_tpu, mode="strict"),
    "jax.jit by hand": _jax,
    "cpu eager": partial(_torch_step, device="cpu"),
    "inductor": partial(_torch_step, device="cpu", backend="inductor"),
    "torchax, jit": _torchax,
    "torch_xla, lazy": _torch_xla,
    "torch_xla, openxla": partial(_torch_xla, backend="openxla"),
}


def _timed(step: Step, times: int) -> dict[str, float]:
    """Milliseconds per step, of the whole process and of the wall clock."""
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        step()
    cpu, wall = time.process_time() - began_cpu, time.perf_counter() - began
    return {"cpu_ms": cpu / times * 1e3, "wall_ms": wall / times * 1e3}


def _first(step: Step) -> dict[str, Any]:
    """The first steps, compilation included, and the loss that the last one had."""
    began, began_cpu = time.perf_counter(), time.process_time()
    losses = [step() for _ in range(FIRST_STEPS)]
    return {
        "loss": losses[-1],
        "first_steps_wall_s": time.perf_counter() - began,
        "first_steps_cpu_s": time.process_time() - began_cpu,
    }


def main(candidate: str, model: str) -> None:
    """Warm up, then obey."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # threads that spin cost nothing then
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print

    def answer(figures: dict[str, Any]) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(figures | {"peak_rss_mb": peak}), file=answers)

    import torch

    torch.set_float32_matmul_precision("highest")
    step = CANDIDATES[candidate](model)
    answer(_first(step))
    if candidate.startswith("tpu"):
        torch.tpu.wait_for_compiles()
    step()
    for line in sys.stdin:
        answer(_timed(step, int(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
