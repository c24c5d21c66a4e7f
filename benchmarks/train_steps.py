# SPDX-License-Identifier: Apache-2.0
"""Training steps in Strict, Fused and compiled form against a hand-written JAX step.

    python benchmarks/train_steps.py [gpt resnet dlrm criteo] [--rounds 9] [--save]

All candidates run in one process and take turns; programs of `tpu` and of the JAX step use
the same XLA client. CPU time of the whole process is compared, since the machine is shared;
wall time is given beside it. On a simulated TPU the values are computed by XLA:CPU: these
are figures of the software, not of a TPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import _jax_models as jax_models
import jax
import jax.numpy as jnp
import torch
from _measure import Spread, save
from _tasks import MODELS, optimizer_of

Step = Callable[[], Any]


def torch_step(name: str, device: str, compiled: bool = False) -> Step:
    """A training step that reads its loss."""
    model, batch, loss_of = MODELS[name]()
    model.to(device)
    batch = tuple(t.to(device) for t in batch)
    optimizer = optimizer_of(name, model)
    # Dynamo keeps what it knows of sizes by the wrapper that all partial functions share.
    torch._dynamo.reset()
    forward = torch.compile(partial(loss_of, model), backend="tpu") if compiled else None

    def step() -> float:
        optimizer.zero_grad()
        loss = forward(*batch) if forward else loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def jax_program(name: str) -> tuple[Any, Any, tuple[jax.Array, ...]]:
    """The same step by hand, on the client that `tpu` uses: (jitted step, state, batch)."""
    from torchtpu_core.runtime import clients

    model, batch, _ = MODELS[name]()
    place = clients.sharding(0)

    def put(t: torch.Tensor) -> jax.Array:
        host = t.detach().numpy()
        return jax.device_put(host.astype("int32") if host.dtype == "int64" else host, place)

    params = {n: put(p) for n, p in model.named_parameters()}
    arrays = tuple(put(t) for t in batch)
    zeros = {n: jax.device_put(jnp.zeros_like(p), place) for n, p in params.items()}
    if name == "resnet":
        statistics_ = {n: put(b) for n, b in model.named_buffers() if "running" in n}
        state: Any = (params, zeros, statistics_)
        call = jax_models.momentum_step(jax_models.resnet_loss)
    else:
        loss = jax_models.dlrm_loss
        if name == "gpt":
            loss = partial(jax_models.gpt_loss, layers=4, heads=8)
        again = {n: jax.device_put(jnp.zeros_like(p), place) for n, p in params.items()}
        state = (params, zeros, again, jax.device_put(jnp.float32(0), place))
        call = jax_models.adamw_step(loss)
    return call, state, arrays


def jax_step(name: str) -> Step:
    """The hand-written step, holding its state."""
    call, state, arrays = jax_program(name)
    held = [state]

    def step() -> float:
        held[0], loss = call(held[0], *arrays)
        return float(loss)

    return step


def in_mode(mode: str, step: Step) -> Step:
    """The step in an eager mode."""

    def run() -> Any:
        with torch.tpu.set_eager_mode(mode):
            return step()

    return run


def measure(name: str, rounds: int, calls: int) -> dict[str, Any]:
    """CPU and wall milliseconds per step of each candidate, and ratios to JAX."""
    torch.set_float32_matmul_precision("highest")
    candidates: dict[str, Step] = {
        "jax": jax_step(name),
        "strict": in_mode("strict", torch_step(name, "tpu")),
        "fused": torch_step(name, "tpu"),
        "compiled": torch_step(name, "tpu", compiled=True),
        "cpu eager": torch_step(name, "cpu"),
    }
    losses: dict[str, list[float]] = {}
    torch.tpu.set_eager_mode("fused")
    for label, step in candidates.items():
        losses[label] = [step() for _ in range(8)]
        if label == "fused":
            torch.tpu.wait_for_compiles()
            step()
    cpu: dict[str, list[float]] = {label: [] for label in candidates}
    wall: dict[str, list[float]] = {label: [] for label in candidates}
    for turn in range(rounds + 1):
        for label, step in candidates.items():
            step()
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                step()
            if turn:
                cpu[label].append((time.process_time() - began_cpu) / calls * 1e3)
                wall[label].append((time.perf_counter() - began) / calls * 1e3)
    return {
        "loss after 8 steps": {label: values[7] for label, values in losses.items()},
        "cpu_ms": {label: Spread.of(values) for label, values in cpu.items()},
        "wall_ms": {label: Spread.of(values) for label, values in wall.items()},
        "cpu over jax": {
            label: statistics.median(a / b for a, b in zip(values, cpu["jax"], strict=True))
            for label, values in cpu.items()
        },
        "peak rss mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="which models")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=0, help="steps a round; 0 chooses")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args(argv)
    unknown = set(args.models) - set(MODELS)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}. Models: {', '.join(MODELS)}.")
    figures = {}
    for name in args.models:
        figures[name] = measure(name, args.rounds, args.calls or (20 if name == "dlrm" else 3))
        print(name)
        for key, values in figures[name].items():
            print(f"  {key}: {values}", flush=True)
    if args.save:
        print(save("train_steps", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
