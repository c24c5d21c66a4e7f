# SPDX-License-Identifier: Apache-2.0
"""Run both examples on two devices and print their final losses side by side.

    python examples/compare.py --devices cpu tpu

Each run is a process of its own with the same seed. The exit code is 1 if the loss curves of
an example differ at any step by more than float32 rounding explains.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

from _common import Run, load, plot_curves
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
EXAMPLES = ("digits", "gpt")

#: Largest difference of two losses that counts as rounding, relative to a loss of one nat or
#: more. Two float32 orders of summation on one CPU differ by up to 1e-6 in 200 steps of either
#: example; a wrong operator shows as 1e-2 and more.
TOLERANCE = 1e-4


def run_example(name: str, device: str, steps: int, out: Path) -> Run:
    """Train one example on one device in a process of its own."""
    command = [sys.executable, str(HERE / f"train_{name}.py"), "--device", device]
    subprocess.run([*command, "--steps", str(steps), "--out", str(out)], check=True)
    return load(out / f"{name}-{device.replace(':', '')}.json")


def largest_difference(first: Run, second: Run) -> float:
    """Over all steps, the difference of the losses, relative where a loss exceeds one.

    Infinite if a loss of either run is not a number.
    """
    differences = [
        abs(a - b) / max(1.0, abs(a)) for a, b in zip(first.losses, second.losses, strict=True)
    ]
    return max(math.inf if math.isnan(difference) else difference for difference in differences)


def table_of(pairs: list[tuple[Run, Run]]) -> Table:
    """Final losses side by side."""
    first, second = (run.device for run in pairs[0])
    table = Table(title=f"{len(pairs[0][0].losses)} steps on {first} and on {second}")
    table.add_column("example")
    table.add_column(f"final loss\n{first}", justify="right")
    table.add_column(f"final loss\n{second}", justify="right")
    table.add_column("largest\ndifference", justify="right")
    table.add_column("test accuracy", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for pair in pairs:
        accuracies = [run.metrics.get("test accuracy") for run in pair]
        table.add_row(
            pair[0].name,
            *(f"{run.losses[-1]:.6f}" for run in pair),
            f"{largest_difference(*pair):.1e}",
            " / ".join(f"{value:.1%}" for value in accuracies if value is not None),
            " / ".join(f"{run.seconds:.1f}" for run in pair),
        )
    return table


def main(argv: list[str] | None = None) -> int:
    """Run, print, plot; 0 if all curves agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", nargs=2, default=["cpu", "tpu"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the results")
    args = parser.parse_args(argv)
    first, second = args.devices

    pairs = []
    for name in EXAMPLES:
        pair = [run_example(name, device, args.steps, args.out) for device in (first, second)]
        plot_curves(pair, args.out / f"{name}.png")
        pairs.append((pair[0], pair[1]))

    console = Console()
    console.print(table_of(pairs))
    console.print(f"Loss curves: {', '.join(str(args.out / f'{n}.png') for n in EXAMPLES)}")
    apart = [a.name for a, b in pairs if largest_difference(a, b) > TOLERANCE]
    if apart:
        console.print(
            f"The curves of {', '.join(apart)} differ by more than {TOLERANCE:g}: on {second} an "
            "operator computes something else, or it uses a lower matmul precision."
        )
    return 1 if apart else 0


if __name__ == "__main__":
    raise SystemExit(main())
