# SPDX-License-Identifier: Apache-2.0
"""How long a new process takes to its first training step, with an empty cache and a full one.

    python benchmarks/warm_start.py

Each row is a process of its own that trains the GPT of `examples/train_gpt.py`. The floor is
what no cache can save: imports, starting the device, moving the model there, and one step as
fast as the process's later ones (their median). "first / floor" puts the time to the end of
the first step over it, in wall time and in CPU time of the whole process; on a shared machine
the latter is the steadier. ``cpu`` is PyTorch on the CPU, for scale.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_EXAMPLES = Path(__file__).parent.parent / "examples"


def child(device: str, mode: str, layers: int, steps: int) -> dict[str, Any]:
    """Train in this process; times in seconds and the counters after the last step."""
    began, cpu_began = time.perf_counter(), time.process_time()
    sys.path.insert(0, str(_EXAMPLES))
    import torch
    from torch.nn import functional as F
    from train_gpt import GPT

    torch.manual_seed(0)
    model = GPT(layers, 64, 4, 64, 0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 256, (8, 65), generator=torch.Generator().manual_seed(0))
    imported = time.perf_counter()
    if device == "tpu":
        torch.tpu.set_eager_mode(mode)
    model.to(device)
    tokens = tokens.to(device)
    if device == "tpu":
        torch.tpu.synchronize()
    moved = time.perf_counter()
    cpu_moved = time.process_time()
    times, cpu_times = [], []
    for _ in range(steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    counters = torch.tpu.counters() if device == "tpu" else {}
    step = statistics.median(times[steps // 2 :])
    cpu_step = statistics.median(cpu_times[steps // 2 :])
    cpu_before = cpu_moved - cpu_began
    return {
        "import_s": imported - began,
        "move_s": moved - imported,
        "first_step_s": times[0],
        "later_step_s": step,
        "all_steps_s": sum(times),
        "first_over_floor": (moved - began + times[0]) / (moved - began + step),
        "cpu_first_over_floor": (cpu_before + cpu_times[0]) / (cpu_before + cpu_step),
        "loss": loss.item(),
        **{
            name: counters[name]
            for name in ("programs", "compiles", "directory_hits")
            if name in counters
        },
    }


def measure(arguments: list[str], folder: str) -> dict[str, Any]:
    """Run `child` in a new process with a cache directory."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        env=os.environ | {"TORCH_TPU_CACHE_DIR": folder},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print a table, save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--mode", default="strict", choices=("strict", "fused"))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warm", type=int, default=3, help="processes with a full cache")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.device, args.mode, args.layers, args.steps)))
        return
    from _measure import save
    from rich.console import Console
    from rich.table import Table

    sizes = ["--layers", str(args.layers), "--steps", str(args.steps)]
    figures = {"cpu": measure(["--device", "cpu", *sizes], "")}
    for mode in ("strict", "fused"):
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(1 + args.warm):
                name = f"{mode}, full cache {turn}" if turn else f"{mode}, empty cache"
                figures[name] = measure(["--mode", mode, *sizes], folder)
    columns = list(figures["strict, empty cache"])
    table = Table(title=f"GPT of {args.layers} layers, {args.steps} steps, one process a row")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in figures.items():
        cells = (row.get(column, "-") for column in columns)
        table.add_row(name, *(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells))
    Console(width=200).print(table)
    if not args.no_save:
        print(f"saved to {save('warm_start', figures).name}")


if __name__ == "__main__":
    main()
