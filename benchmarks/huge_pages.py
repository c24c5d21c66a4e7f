# SPDX-License-Identifier: Apache-2.0
"""Training steps with and without huge pages for malloc (`torchtpu_core.huge_pages`).

    python benchmarks/huge_pages.py [gpt resnet dlrm] [--rounds 3] [--save]

Each figure is a process of its own; the settings take turns. Per step: page faults, and
milliseconds of wall and CPU time, of Fused Eager and of the hand-written JAX step.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from typing import Any

from _measure import Spread, arguments, in_child, save

MODELS = ("gpt", "resnet", "dlrm")
STEPS = 5


def child(name: str) -> None:
    """Measure in this process; prints the figures."""
    import torch
    from train_steps import jax_step, torch_step

    candidates = {"jax": jax_step(name), "fused": torch_step(name, "tpu")}
    for step in candidates.values():
        for _ in range(8):
            step()
        torch.tpu.wait_for_compiles()
        step()
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(5):
        for label, step in candidates.items():
            step()
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                step()
            measured = {
                "wall ms": (time.perf_counter() - began) / STEPS * 1e3,
                "cpu ms": (time.process_time() - began_cpu) / STEPS * 1e3,
                "faults": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / STEPS,
            }
            for key, value in measured.items():
                figures.setdefault(f"{label} {key}", {}).setdefault("all", []).append(value)
    print(json.dumps({k: statistics.median(v["all"]) for k, v in figures.items()}))


def main() -> None:
    """Measure, print, and save with ``--save``."""
    args = arguments(__doc__, MODELS, child)
    if args is None:
        return
    figures: dict[str, Any] = {}
    for name in args.cases:
        seen: dict[str, dict[str, list[float]]] = {}
        for _ in range(args.rounds):
            for label in ("0", "1"):
                for key, value in in_child(
                    __file__, name, GLIBC_TUNABLES=f"glibc.malloc.hugetlb={label}"
                ).items():
                    seen.setdefault(key, {}).setdefault(label, []).append(value)
        figures[name] = {
            key: {
                "malloc's pages": Spread.of(values["0"]),
                "huge pages": Spread.of(values["1"]),
            }
            for key, values in seen.items()
        }
        for key, spreads in figures[name].items():
            print(name, key, ", ".join(f"{k} {v}" for k, v in spreads.items()), flush=True)
    if args.save:
        print(save("huge_pages", figures))


if __name__ == "__main__":
    main()
