# SPDX-License-Identifier: Apache-2.0
"""Collectives of tpu tensors beside gloo's of CPU tensors, in the same processes.

    torchtpu run --chips 2 benchmarks/collectives.py

Times are wall time of the simulated device's real execution on this machine's CPU, not
simulated time. The two take turns; a turn is some calls and one wait.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from _measure import Spread, ratios, save, turns
from torch import distributed as dist

#: Bytes of a rank's operand, and calls of a turn.
SIZES = {"4 B": (4, 40), "64 KiB": (1 << 16, 20), "1 MiB": (1 << 20, 10), "64 MiB": (1 << 26, 1)}


def operations(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """One call each on an operand that is not changed by more than a constant."""
    size = dist.get_world_size()
    gathered = x.new_zeros(size * x.numel())
    wide = x.new_zeros(size * max(1, x.numel() // size))
    piece, swapped = wide.new_zeros(wide.numel() // size), torch.zeros_like(wide)
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, x),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, wide),
        "all_to_all": lambda: dist.all_to_all_single(swapped, wide),
    }


def measure(rounds: int, only: str) -> dict[str, Any]:
    """Microseconds per call by gloo and on the device, and their ratio, by operation and size."""
    figures: dict[str, Any] = {}
    device = torch.device("tpu", torch.tpu.current_device())
    for label, (nbytes, calls) in SIZES.items():
        host = operations(torch.zeros(nbytes // 4))
        ours = operations(torch.zeros(nbytes // 4, device=device))
        for name in host:
            if only not in f"{name} {label}":
                continue
            times = turns(
                {
                    "gloo": (host[name], lambda: None),
                    "tpu": (ours[name], torch.tpu.synchronize),
                },
                calls=calls,
                rounds=rounds,
            )
            figures[f"{name} {label}"] = {
                "gloo_us": Spread.of(times["gloo"]).median,
                "tpu_us": Spread.of(times["tpu"]).median,
                "tpu_over_gloo": ratios(times, "gloo")["tpu"],
            }
            if dist.get_rank() == 0:
                row = figures[f"{name} {label}"]
                print(
                    f"{name:16}{label:8}{row['gloo_us']:12.0f}{row['tpu_us']:12.0f} us  "
                    f"{row['tpu_over_gloo']}",
                    flush=True,
                )
    return figures


def main() -> None:
    """Measure on all ranks; rank 0 prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="part of an operation's name and size")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    dist.init_process_group()
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
    figures = measure(args.rounds, args.only)
    if dist.get_rank() == 0 and not args.no_save:
        path = save(f"collectives_{dist.get_world_size()}_ranks", figures)
        print(f"saved to {path.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
