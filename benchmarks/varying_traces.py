# SPDX-License-Identifier: Apache-2.0
"""Scripts whose trace differs at every step, Fused and Strict.

    python benchmarks/varying_traces.py [operators sizes] [--rounds 3] [--save]

``operators``: 300 random chains of 20 to 60 of ten operators on a 64x64 tensor, which are all
compiled before. ``sizes``: 25 such chains, each on a tensor of a size that was not met before.
Each figure is a process of its own with an empty cache; the modes take turns. Seconds of wall time
and of CPU time.
"""

from __future__ import annotations

import random

from _measure import arguments, compare_modes, print_seconds, save

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

    def steps() -> None:
        for index in range(STEPS[kind]):
            step(65 + index if kind == "sizes" else 64)

    print_seconds(steps)


def main() -> None:
    """Measure, print, and save with ``--save``."""
    args = arguments(__doc__, list(STEPS), child)
    if args is None:
        return
    figures = compare_modes(__file__, args)
    if args.save:
        print(save("varying_traces", figures))


if __name__ == "__main__":
    main()
