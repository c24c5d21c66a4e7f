# SPDX-License-Identifier: Apache-2.0
"""The first twenty training steps of a fresh process with an empty cache, Fused and Strict.

    python benchmarks/first_steps.py [gpt resnet dlrm] [--rounds 3] [--save]

Each figure is a process of its own with a cache directory of its own; the modes take turns.
Seconds of wall time and of CPU time from the first step to the last, compilation included.
"""

from __future__ import annotations

from _measure import arguments, compare_modes, print_seconds, save

MODELS = ("gpt", "resnet", "dlrm")
STEPS = 20


def child(name: str) -> None:
    """Twenty steps in the mode that the environment names; prints the figures."""
    from train_steps import torch_step

    step = torch_step(name, "tpu")

    def steps() -> None:
        for _ in range(STEPS):
            step()

    print_seconds(steps)


def main() -> None:
    """Measure, print, and save with ``--save``."""
    args = arguments(__doc__, MODELS, child)
    if args is None:
        return
    figures = compare_modes(__file__, args)
    if args.save:
        print(save("first_steps", figures))


if __name__ == "__main__":
    main()
