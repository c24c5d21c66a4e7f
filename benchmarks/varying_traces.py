# SPDX-License-Identifier: Apache-2.0
"""Scripts whose trace differs at every step, Fused and Strict.

    python benchmarks/varying_traces.py [operators sizes] [--rounds 3] [--save]

``operators``: 300 random chains of 20 to 60 of ten operators on a 64x64 tensor, which are all
compiled before. ``sizes``: 25 such chains, each on a tensor of a size that was not met before.
Each figure is a process of its own with an empty cache; the modes take turns. Seconds of wall time
and of CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time

from _measure import Spread, in_child, ratios, save

STEPS = {"operators": 300, "sizes": 25}
WARM_UP = 5


def child(kind: str) -> None:
    """The steps of a kind in the mode that the environment names; prints the figures."""
    import torch

    chosen = random.Random(0)
    functions = (
        *(torch.sin, torch.cos, torch.exp, torch.tanh, torch.relu, torch.sigmoid),
        lambda x: x * 0.5,
        lambda x: x + 1,
        lambda x: x - x.mean(),
        lambda x: x.abs().sqrt(),
    )

    def step(size: int) -> None:
        x = torch.ones(size, 64, device="tpu")
        for _ in range(chosen.randint(20, 60)):
            x = chosen.choice(functions)(x)
        x.sum().item()

    for _ in range(WARM_UP):
        step(64)
    began, began_cpu = time.perf_counter(), time.process_time()
    for index in range(STEPS[kind]):
        step(65 + index if kind == "sizes" else 64)
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - began_cpu}))


def run(kind: str, mode: str) -> dict[str, float]:
    """One process."""
    with tempfile.TemporaryDirectory() as cache:
        return in_child(__file__, kind, TORCH_TPU_EAGER_MODE=mode, TORCH_TPU_CACHE_DIR=cache)


def main() -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", default="")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    figures = {}
    for kind in args.kinds:
        times: dict[str, dict[str, list[float]]] = {"wall": {}, "cpu": {}}
        for _ in range(args.rounds):
            for mode in ("strict", "fused"):
                for clock, seconds in run(kind, mode).items():
                    times[clock].setdefault(mode, []).append(seconds)
        for clock, by_mode in times.items():
            row = {m: Spread.of(v) for m, v in by_mode.items()}
            row["fused over strict"] = ratios(by_mode, "strict")["fused"]
            figures[f"{kind} {clock} s"] = row
            print(kind, clock, ", ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if args.save:
        print(save("varying_traces", figures))


if __name__ == "__main__":
    main()
