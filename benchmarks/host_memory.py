# SPDX-License-Identifier: Apache-2.0
"""Training steps with freed blocks kept, without, and with huge pages instead.

    python benchmarks/host_memory.py [gpt resnet dlrm criteo] [--rounds 3] [--save]

Each figure is a process of its own; the settings take turns. Per step: page faults, and
milliseconds of wall and CPU time, of Fused Eager and of the hand-written JAX step; and the
largest resident size of the process in MiB (`torchtpu_core.runtime.host_memory`).
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from typing import Any

from _measure import Spread, arguments, in_child, save

MODELS = ("gpt", "resnet", "dlrm", "criteo")
STEPS = 5

#: glibc's tunables for each setting; any of malloc's, such as the second's, keeps ours out.
SETTINGS = {
    "blocks kept": "",
    "malloc's own": "glibc.malloc.check=0",
    "huge pages": "glibc.malloc.hugetlb=1",
}


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
    medians = {k: statistics.median(v["all"]) for k, v in figures.items()}
    print(json.dumps({**medians, "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def main() -> None:
    """Measure, print, and save with ``--save``."""
    args = arguments(__doc__, MODELS, child)
    if args is None:
        return
    figures: dict[str, Any] = {}
    for name in args.cases:
        seen: dict[str, dict[str, list[float]]] = {}
        for _ in range(args.rounds):
            for label, tunables in SETTINGS.items():
                for key, value in in_child(__file__, name, GLIBC_TUNABLES=tunables).items():
                    seen.setdefault(key, {}).setdefault(label, []).append(value)
        figures[name] = {
            key: {label: Spread.of(values[label]) for label in SETTINGS}
            for key, values in seen.items()
        }
        for key, spreads in figures[name].items():
            print(name, key, ", ".join(f"{k} {v}" for k, v in spreads.items()), flush=True)
    if args.save:
        print(save("host_memory", figures))


if __name__ == "__main__":
    main()
