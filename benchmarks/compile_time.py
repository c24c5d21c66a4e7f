# SPDX-License-Identifier: Apache-2.0
"""The first call of a compiled function on `tpu` beside that of hand-written JAX, nothing cached.

    python benchmarks/compile_time.py [gpt resnet dlrm] [--rounds 5] [--save]

Each figure is a process of its own without a program cache; the two kinds take turns. Before the
clock runs a small function was compiled, so that all modules are imported and the device started.
Three parts of each example: `inference`, the loss without gradients; `train`, the loss and its
gradients; `step`, the same with the optimizer. On the torch side the first two compile the loss
and call ``backward``, the third compiles the whole step. On the JAX side one `jit` each, on the
same XLA client. The backend `aot_eager` on CPU tensors, which compiles nothing, shows what PyTorch
takes to trace.

Our seconds are split into Dynamo (frames and guards), AOTAutograd (joint graph, partition),
planning (graphs to steps of programs), lowering (to StableHLO, with the cache's key), XLA, and the
rest, which is the call itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from _measure import Spread, ratios, save

MODELS = ("gpt", "resnet", "dlrm")
PARTS = ("inference", "train", "step")
#: The wish of the project.
BAR = 1.3


class Clock:
    """Seconds of wall time, and of CPU time of the whole process, by phase."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside, of all threads."""
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - began
            self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - began_cpu

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Count the calls of a function that others look up in `owner`."""
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return function(*args, **kwargs)

        setattr(owner, name, watched)


def torch_call(
    name: str, part: str, device: str = "tpu", backend: str = "tpu"
) -> Callable[[], Any]:
    """What the first call of is measured."""
    import torch
    from _tasks import MODELS as MAKE
    from _tasks import optimizer_of

    model, batch, loss_of = MAKE[name]()
    model.to(device)
    batch = tuple(t.to(device) for t in batch)
    loss = partial(loss_of, model)
    if part == "inference":
        compiled = torch.compile(loss, backend=backend)

        def infer() -> Any:
            with torch.no_grad():
                return compiled(*batch)

        return infer
    if part == "train":
        compiled = torch.compile(loss, backend=backend)

        def train() -> Any:
            value = compiled(*batch)
            value.backward()
            return value.detach()

        return train
    optimizer = optimizer_of(name, model)

    def step() -> Any:
        optimizer.zero_grad()
        value = loss(*batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return torch.compile(step, backend=backend)


def jax_call(name: str, part: str) -> Callable[[], Any]:
    """The same by hand."""
    import _jax_models as jax_models
    import jax
    from train_steps import jax_program

    call, state, arrays = jax_program(name)
    if part == "step":
        return lambda: call(state, *arrays)[1]
    params = state[0]
    if name == "resnet":
        loss, auxiliary, operands = jax_models.resnet_loss, True, (state[2], *arrays)
    else:
        loss, auxiliary, operands = jax_models.dlrm_loss, False, arrays
        if name == "gpt":
            loss = partial(jax_models.gpt_loss, layers=4, heads=8)
    if part == "train":
        loss = jax.value_and_grad(loss, has_aux=auxiliary)
    return lambda: jax.tree.leaves(jax.jit(loss)(params, *operands))[0]


def torch_child(name: str, part: str) -> dict[str, Any]:
    """Seconds of the first call on `tpu`, and where they went."""
    import torch
    import torch._dynamo.backends.common
    import torch._functorch.aot_autograd
    import torch._higher_order_ops
    import torchtpu_compile.backend as backend
    import torchtpu_core.runtime.compiling as compiling
    from torch._dynamo import convert_frame, output_graph

    clock = Clock()
    call = torch_call(name, part)
    weight = torch.ones(2, 2, device="tpu", requires_grad=True)
    small = torch.compile(lambda x: (x @ x).exp().sum(), backend="tpu")
    small(weight).backward()  # imports what is imported at the first use
    weight.grad.cpu()  # type: ignore[union-attr]
    torch._dynamo.reset()
    clock.watch(convert_frame, "_compile", "frames")
    clock.watch(output_graph.OutputGraph, "call_user_compiler", "compiler")
    clock.watch(backend, "compile_graph", "planning")
    clock.watch(compiling, "_find_or_compile", "xla")
    clock.watch(compiling, "compile_function", "programs")
    before = torch.tpu.counters()["compiles"]
    with clock.phase("all"):
        float(call().cpu())
    cpu = clock.cpu
    split = {
        "dynamo": cpu["frames"] - cpu["compiler"],
        "aot autograd": cpu["compiler"] - cpu["planning"],
        "planning": cpu["planning"],
        "lowering": cpu["programs"] - cpu["xla"],
        "xla": cpu["xla"],
    }
    split["rest"] = cpu["all"] - sum(split.values())
    return {
        "wall": clock.wall["all"],
        "cpu": cpu["all"],
        "split": split,
        "compiles": torch.tpu.counters()["compiles"] - before,
    }


def tracing_child(name: str, part: str) -> dict[str, Any]:
    """Seconds of the first call on the CPU, of a backend that does not compile."""
    import torch

    call = torch_call(name, part, "cpu", "aot_eager")
    weight = torch.ones(2, 2, requires_grad=True)
    torch.compile(lambda x: (x @ x).exp().sum(), backend="aot_eager")(weight).backward()
    torch._dynamo.reset()
    clock = Clock()
    with clock.phase("all"):
        float(call())
    return {"wall": clock.wall["all"], "cpu": clock.cpu["all"]}


def jax_child(name: str, part: str) -> dict[str, Any]:
    """Seconds of the first call of the hand-written function."""
    import jax
    import jax.numpy as jnp

    call = jax_call(name, part)
    small = jax.jit(jax.value_and_grad(lambda x: jnp.exp(x @ x).sum()))
    jax.block_until_ready(small(jnp.ones((2, 2))))
    clock = Clock()
    with clock.phase("all"):
        float(call())
    return {"wall": clock.wall["all"], "cpu": clock.cpu["all"]}


CHILDREN = {"jax": jax_child, "tpu": torch_child, "aot_eager on cpu": tracing_child}


def run(kind: str, name: str, part: str) -> dict[str, Any]:
    """One process."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, name, part],
        env={**os.environ, "TORCH_TPU_CACHE_DIR": "", "TORCH_TPU_EAGER_MODE": "fused"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{kind} {name} {part} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(name: str, part: str, rounds: int) -> dict[str, Any]:
    """Both kinds in turns."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in CHILDREN}
    for _ in range(rounds):
        for kind, figures in found.items():
            figures.append(run(kind, name, part))
    result: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        times = {kind: [f[clock] for f in figures] for kind, figures in found.items()}
        result[f"{clock} s"] = {kind: Spread.of(values) for kind, values in times.items()}
        result[f"{clock} over jax"] = {k: r for k, r in ratios(times, "jax").items() if k != "jax"}
    best = min(found["tpu"], key=lambda f: f["cpu"])
    result["split of the fastest, cpu s"] = {k: round(v, 3) for k, v in best["split"].items()}
    result["programs"] = best["compiles"]
    return result


def main() -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--parts", nargs="*", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, name, part = args.child
        print(json.dumps(CHILDREN[kind](name, part)))
        return
    figures = {}
    for name in args.models:
        for part in args.parts:
            figures[f"{name} {part}"] = found = measure(name, part, args.rounds)
            print(f"{name} {part}")
            for key, value in found.items():
                shown = {k: str(v) for k, v in value.items()} if isinstance(value, dict) else value
                print(f"  {key}: {shown}", flush=True)
    if args.save:
        print(save("compile_time", figures | {"bar": BAR}).name)


if __name__ == "__main__":
    main()
