# SPDX-License-Identifier: Apache-2.0
"""Peak device memory of a training step beside that of a hand-written, donating JAX step.

    python benchmarks/step_memory.py [gpt resnet dlrm] [--save]

For `tpu`: the peak of `torch.tpu.max_memory_allocated` over steady steps, which counts what
programs hold, their results and the temporaries that XLA states. For JAX: XLA's own figures of
the step's program, operands + new results + temporaries. Same XLA:CPU client; on a simulated
TPU these are figures of the software, not of a TPU.
"""

from __future__ import annotations

import argparse
import gc
import sys
from typing import Any

import torch
from _measure import save
from _tasks import MODELS
from train_steps import in_mode, jax_program, torch_step

STEPS = 8  # the fused program is there after two or three


def jax_bytes(name: str) -> int:
    """Peak of the hand-written step's program."""
    call, state, arrays = jax_program(name)
    stats = call.lower(state, *arrays).compile().memory_analysis()
    new = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return int(stats.argument_size_in_bytes + new + stats.temp_size_in_bytes)


def torch_bytes(name: str, mode: str, compiled: bool) -> int:
    """Peak of the steady steps on `tpu`."""
    gc.collect()
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    step = in_mode(mode, torch_step(name, "tpu", compiled=compiled))
    for _ in range(STEPS):
        step()
        torch.tpu.wait_for_compiles()
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.tpu.synchronize()
    return torch.tpu.max_memory_allocated() - before


def measure(name: str) -> dict[str, Any]:
    """Bytes of each candidate and their ratios to JAX."""
    found = {
        "jax": jax_bytes(name),
        "strict": torch_bytes(name, "strict", compiled=False),
        "fused": torch_bytes(name, "fused", compiled=False),
        "compiled": torch_bytes(name, "fused", compiled=True),
    }
    return {
        "peak_bytes": found,
        "over_jax": {k: round(v / found["jax"], 3) for k, v in found.items()},
    }


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    figures = {}
    for name in args.models:
        figures[name] = measure(name)
        for candidate, size in figures[name]["peak_bytes"].items():
            ratio = figures[name]["over_jax"][candidate]
            print(f"{name:8s} {candidate:9s} {size / 1e6:9.1f} MB  {ratio:.2f} of jax")
    if args.save:
        print("saved", save("step_memory", {"argv": sys.argv[1:], "models": figures}).name)


if __name__ == "__main__":
    main()
