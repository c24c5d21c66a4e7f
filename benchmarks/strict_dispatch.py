# SPDX-License-Identifier: Apache-2.0
"""Cost of one op in Strict Eager beside a bare ``jax.jit`` call of the same op.

    python benchmarks/strict_dispatch.py

Same process, same XLA client, 64x64 float32, a chain of calls and one wait. Also CPU
eager, for scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from _measure import ratios, save, turns
from rich.console import Console
from rich.table import Table
from torchtpu_core import _C


def cases(size: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]]:
    """Op name to (CPU torch, bare jit, Strict)."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    x, y = a.to("tpu"), b.to("tpu")
    jx, jy = _C.array_of(x), _C.array_of(y)
    half = np.float32(0.5)
    add = jax.jit(lambda p, q: p + q)
    scale = jax.jit(lambda p, s: p * s)
    dot = jax.jit(lambda p, q: p @ q)
    relu = jax.jit(lambda p: jax.numpy.maximum(p, 0))
    softmax = jax.jit(lambda p: jax.nn.softmax(p, axis=-1))
    total = jax.jit(lambda p: p.sum())
    summed = [jx]

    def add_to() -> jax.Array:  # as `add_` does, each call takes the last one's result
        summed[0] = add(summed[0], jy)
        return summed[0]

    return {
        "add": (lambda: a + b, lambda: add(jx, jy), lambda: x + y),
        "mul by scalar": (lambda: a * 0.5, lambda: scale(jx, half), lambda: x * 0.5),
        "matmul": (lambda: a @ b, lambda: dot(jx, jy), lambda: x @ y),
        "relu": (lambda: a.relu(), lambda: relu(jx), lambda: x.relu()),
        "softmax": (lambda: a.softmax(-1), lambda: softmax(jx), lambda: x.softmax(-1)),
        "sum": (lambda: a.sum(), lambda: total(jx), lambda: x.sum()),
        "add_": (lambda: a.add_(b), add_to, lambda: x.add_(y)),
    }


def measure(size: int, calls: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Per op: microseconds per call and the ratio of Strict over bare jit."""
    figures: dict[str, dict[str, Any]] = {}
    for name, (cpu, jit, strict) in cases(size).items():
        times = turns(
            {
                "cpu": (cpu, lambda: None),
                "jit": (jit, lambda jit=jit: jax.block_until_ready(jit())),
                "strict": (strict, torch.tpu.synchronize),
            },
            calls=calls,
            rounds=rounds,
        )
        spread = ratios(times, "jit")
        figures[name] = {
            "cpu_us": sorted(times["cpu"])[rounds // 2],
            "jit_us": sorted(times["jit"])[rounds // 2],
            "strict_us": sorted(times["strict"])[rounds // 2],
            "strict_over_jit": spread["strict"],
        }
    return figures


def main() -> None:
    """Measure, print a table, save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    torch.tpu.set_eager_mode("strict")
    figures = measure(args.size, args.calls, args.rounds)
    table = Table(title=f"us per op, {args.size}x{args.size} float32; ratio: median (min to max)")
    for column in ("op", "CPU torch", "bare jit", "Strict", "Strict / jit"):
        table.add_column(column, justify="left" if column == "op" else "right")
    for name, row in figures.items():
        table.add_row(
            name,
            *(f"{row[key]:.1f}" for key in ("cpu_us", "jit_us", "strict_us")),
            str(row["strict_over_jit"]),
        )
    Console().print(table)
    if not args.no_save:
        print(f"saved to {save('strict_dispatch', figures).name}")


if __name__ == "__main__":
    main()
