# SPDX-License-Identifier: Apache-2.0
"""What recording an operator costs, against CPU eager running it.

    python benchmarks/record_cost.py [--save]

Microseconds per operator from Python, dispatch included, on 64x64 float32. Nothing is run on
`tpu` while the clock runs: the trace is recorded and dropped. Both take turns in one process.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

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
    for name, op in OPS.items():
        times: dict[str, list[float]] = {"cpu": [], "tpu": []}
        for turn in range(args.rounds + 1):
            for device, values in times.items():
                taken = microseconds(op, device, args.calls)
                if turn:
                    values.append(taken)
        figures[name] = {device: Spread.of(values) for device, values in times.items()}
        figures[name]["tpu over cpu"] = ratios(times, "cpu")["tpu"]
        print(f"{name:14}", ", ".join(f"{k} {v}" for k, v in figures[name].items()), flush=True)
    if args.save:
        print(save("record_cost", figures))


if __name__ == "__main__":
    main()
