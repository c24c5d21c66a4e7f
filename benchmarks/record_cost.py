# SPDX-License-Identifier: Apache-2.0
"""What recording an operator costs, against CPU eager running it.

    python benchmarks/record_cost.py [--save]

Microseconds per operator from Python, dispatch included, on 64x64 float32. Nothing is run on
`tpu` while the clock runs: the trace is recorded and dropped. Both take turns in one process.
Ops "of new sizes" get at each call a new tensor of as many rows as none before.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from collections.abc import Callable
from functools import partial

import torch
from _measure import Spread, ratios, save
from torchtpu_eager import fused

Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OPS: dict[str, Op] = {
    "add": lambda z, y: z + y,
    "mul by scalar": lambda z, y: z * 0.99,
    "matmul": lambda z, y: z @ y,
    "relu": lambda z, y: torch.relu(z),
    "add_": lambda z, y: z.add_(y),
    "softmax": lambda z, y: torch.softmax(z, -1),
    "sum": lambda z, y: z.sum(),
    "view": lambda z, y: z.view(4096),
}
NEW_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add of new sizes": lambda x: x + x,
    "gelu of new sizes": torch.nn.functional.gelu,
    "cat of new sizes": lambda x: torch.cat((x, x)),
}
_rows = itertools.count(64)


def microseconds(op: Op, device: str, calls: int) -> float:
    """Per call."""
    x, y = torch.randn(64, 64).to(device), torch.randn(64, 64).to(device)
    op(x, y)
    if device == "tpu":
        torch.tpu.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        op(x, y)
    taken = time.perf_counter() - began
    if device == "tpu":
        torch.tpu.synchronize()
    return taken / calls * 1e6


def microseconds_of_new_sizes(
    op: Callable[[torch.Tensor], torch.Tensor], device: str, calls: int
) -> float:
    """Per call, and the tensor's creation."""
    torch.tpu.synchronize()
    rows = [next(_rows) for _ in range(calls)]
    began = time.perf_counter()
    for n in rows:
        op(torch.empty(n, 8, device=device))
    taken = time.perf_counter() - began
    torch.tpu.synchronize()
    return taken / calls * 1e6


def main() -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    torch.tpu.set_eager_mode("fused")
    fused.configure(max_ops=10 * args.calls, patience=10**6, sightings=10**6)
    gc.disable()
    figures = {}
    cases = {name: partial(microseconds, op, calls=args.calls) for name, op in OPS.items()}
    for name, of_new in NEW_SIZES.items():
        cases[name] = partial(microseconds_of_new_sizes, of_new, calls=args.calls // 10)
    for name, measure in cases.items():
        times: dict[str, list[float]] = {"cpu": [], "tpu": []}
        for turn in range(args.rounds + 1):
            for device, values in times.items():
                taken = measure(device=device)
                if turn:
                    values.append(taken)
        figures[name] = {device: Spread.of(values) for device, values in times.items()}
        figures[name]["tpu over cpu"] = ratios(times, "cpu")["tpu"]
        print(f"{name:17}", ", ".join(f"{k} {v}" for k, v in figures[name].items()), flush=True)
    if args.save:
        print(save("record_cost", figures))


if __name__ == "__main__":
    main()
