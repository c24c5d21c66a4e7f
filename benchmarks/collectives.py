# SPDX-License-Identifier: Apache-2.0
"""Collectives of tpu tensors beside gloo's of CPU tensors, in the same processes.

    torchtpu run --chips 2 benchmarks/collectives.py

Times are wall time of the simulated device's real execution on this machine's CPU, not
simulated time. The two take turns; a turn is some calls and one wait. gloo has a process group
of its own, so that nothing of ours is between it and its caller.
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
SIZES = {"4 B": (4, 100), "64 KiB": (1 << 16, 20), "1 MiB": (1 << 20, 10), "64 MiB": (1 << 26, 1)}


def operations(x: torch.Tensor, group: dist.ProcessGroup) -> dict[str, Callable[[], Any]]:
    """One call each on an operand that is not changed by more than a constant."""
    size, is_root = dist.get_world_size(), dist.get_rank() == 0
    gathered = x.new_zeros(size * x.numel())
    wide = x.new_zeros(size * max(1, x.numel() // size))
    piece, swapped = wide.new_zeros(wide.numel() // size), torch.zeros_like(wide)
    rows, pieces = ([torch.zeros_like(piece) for _ in range(size)] for _ in range(2))
    counts = [piece.numel()] * size
    kinds: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "all_gather": lambda: dist.all_gather_single(gathered, x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(piece, wide, group=group),
        "all_to_all": lambda: dist.all_to_all_single(swapped, wide, group=group),
        "gather": lambda: dist.gather(piece, rows if is_root else None, 0, group=group),
        "scatter": lambda: dist.scatter(piece, pieces if is_root else None, 0, group=group),
        "all_gather list": lambda: dist.all_gather(rows, piece, group=group),
        "reduce_scatter list": lambda: dist.reduce_scatter(piece, pieces, group=group),
        "all_to_all list": lambda: dist.all_to_all(rows, pieces, group=group),
        "all_to_all splits": lambda: dist.all_to_all_single(
            swapped, wide, counts, counts, group=group
        ),
        "send_recv": lambda: round_trip(x, group),
        "async all_reduce": lambda: dist.all_reduce(x, group=group, async_op=True).wait(),
        "async all_gather": lambda: dist.all_gather_single(
            gathered, x, group=group, async_op=True
        ).wait(),
        "async reduce_scatter": lambda: dist.reduce_scatter_single(
            piece, wide, group=group, async_op=True
        ).wait(),
        "4 async all_reduce": lambda: all_reduce_parts(x, group),
    }
    return kinds | ({"barrier": lambda: dist.barrier(group)} if x.numel() == 1 else {})


def round_trip(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """To the other rank of a pair and back; a last rank without a partner does nothing."""
    partner = dist.get_rank() ^ 1
    if partner >= dist.get_world_size():
        return
    turns = (dist.send, dist.recv)
    for turn in turns if partner else turns[::-1]:
        turn(x, partner, group=group)


def all_reduce_parts(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Up to four parts at once, as the buckets of a backward pass."""
    works = [dist.all_reduce(part, group=group, async_op=True) for part in x.chunk(4)]
    for work in works:
        work.wait()


def measure(rounds: int, only: str) -> dict[str, Any]:
    """Microseconds per call by gloo and on the device, and their ratio, by operation and size."""
    figures: dict[str, Any] = {}
    device = torch.device("tpu", torch.tpu.current_device())
    gloo = dist.new_group(backend="gloo")
    for label, (nbytes, calls) in SIZES.items():
        host = operations(torch.zeros(nbytes // 4), gloo)
        ours = operations(torch.zeros(nbytes // 4, device=device), dist.group.WORLD)
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
                f"{by}_us": {"median": spread.median, "least": spread.low}
                for by, spread in ((by, Spread.of(times[by])) for by in times)
            } | {"tpu_over_gloo": ratios(times, "gloo")["tpu"]}
            if dist.get_rank() == 0:
                row = figures[f"{name} {label}"]
                print(
                    f"{name:22}{label:8}"
                    + "".join(f"{row[f'{by}_us']['median']:12.1f}" for by in times)
                    + f" us, least {row['gloo_us']['least']:.1f} and {row['tpu_us']['least']:.1f}  "
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
