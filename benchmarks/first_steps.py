# SPDX-License-Identifier: Apache-2.0
"""The first twenty training steps of a fresh process with an empty cache, Fused and Strict.

    python benchmarks/first_steps.py [gpt resnet dlrm] [--rounds 3] [--save]

Each figure is a process of its own with a cache directory of its own; the modes take turns.
Seconds of wall time and of CPU time from the first step to the last, compilation included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

from _measure import Spread, in_child, ratios, save

MODELS = ("gpt", "resnet", "dlrm")
STEPS = 20


def child(name: str) -> None:
    """Twenty steps in the mode that the environment names; prints the figures."""
    from train_steps import torch_step

    step = torch_step(name, "tpu")
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - began_cpu}))


def run(name: str, mode: str) -> dict[str, float]:
    """One process."""
    with tempfile.TemporaryDirectory() as cache:
        return in_child(__file__, name, TORCH_TPU_EAGER_MODE=mode, TORCH_TPU_CACHE_DIR=cache)


def main() -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", default="")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    figures = {}
    for name in args.models:
        for clock in ("wall", "cpu"):
            figures[f"{name} {clock} s"] = {}
        times: dict[str, dict[str, list[float]]] = {"wall": {}, "cpu": {}}
        for _ in range(args.rounds):
            for mode in ("strict", "fused"):
                for clock, seconds in run(name, mode).items():
                    times[clock].setdefault(mode, []).append(seconds)
        for clock, by_mode in times.items():
            figures[f"{name} {clock} s"] = {m: Spread.of(v) for m, v in by_mode.items()} | {
                "fused over strict": ratios(by_mode, "strict")["fused"]
            }
            spreads = figures[f"{name} {clock} s"].items()
            print(name, clock, ", ".join(f"{k} {v}" for k, v in spreads), flush=True)
    if args.save:
        print(save("first_steps", figures))


if __name__ == "__main__":
    main()
