# SPDX-License-Identifier: Apache-2.0
"""What it costs a training step that ranks compare their collectives before they start.

    torchtpu run --chips 2 benchmarks/agreement_cost.py [--rounds 9] [--no-save]

Each rank of a group writes what it calls into memory that the ranks of a machine share, and
compares it with what others have written there; nobody waits, unless another is a whole ring of
calls behind. Here two ranks do that at once for as many calls as a ring and more, by the same code
and with texts as long as those of a step. Times the number of the collectives of an FSDP2 step of
the GPT model (`fsdp_step.py`), the time of one is compared with the step.
Times are wall time of this machine's CPU, not simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measure import Spread, save
from fsdp_step import fsdp_step, mean_over_ranks
from torch import distributed as dist
from torchtpu_distributed import _C, active

Step = Callable[[], float]


def mailbox() -> _C.Mailbox:
    """Memory that both ranks share."""
    rank = dist.get_rank()
    path = [f"/dev/shm/torchtpu_agreement_cost_{os.getpid()}"]
    dist.broadcast_object_list(path, 0, device=torch.device("cpu"))
    if rank == 0:
        made = _C.Mailbox(path[0], 0, 2)
    dist.barrier()
    if rank != 0:
        made = _C.Mailbox(path[0], rank, 2)
    dist.barrier()
    if rank == 0:
        Path(path[0]).unlink()
    return made


def agreements(box: _C.Mailbox, first: int, count: int) -> float:
    """Microseconds of an agreement, over `count` that are numbered from `first`."""
    abort = _C.Abort()
    call = _C.Call("all_gather of float32[1024], " * 4, "all_gather", (), (), 0)
    mean_over_ranks(0.0)
    began = time.perf_counter()
    for number in range(first, first + count):
        if box.compare(number, call, "step.py:1", abort) is not None:
            raise RuntimeError("ranks that call the same differ")
    return mean_over_ranks(time.perf_counter() - began) / count * 1e6


def steps(step: Step, count: int) -> tuple[float, float]:
    """Milliseconds of a step, and how many collectives of the device it has."""
    mean_over_ranks(0.0)
    before = numbers()
    began = time.perf_counter()
    for _ in range(count):
        step()
    took = mean_over_ranks(time.perf_counter() - began) / count * 1e3
    return took, (numbers() - before) / count


def numbers() -> int:
    """Collectives of this process so far, over all groups."""
    world = active.world
    assert world is not None
    return sum(seq for seq, _ in world.ledger.positions().values())


def measure(rounds: int) -> dict[str, Any]:
    """Figures of one agreement and of steps, in turns."""
    candidates = {"fused": fsdp_step(compiled=False), "compiled_blocks": fsdp_step(compiled=True)}
    box, first, count = mailbox(), 1, 500
    one: list[float] = []
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for turn in range(rounds + 3):
        for name, step in candidates.items():
            row = steps(step, 3)
            if turn >= 3:  # the first ones compile
                found[name].append(row)
        cost = agreements(box, first, count)
        first += count
        if turn >= 3:
            one.append(cost)
    figures: dict[str, Any] = {"agreement_us": Spread.of(one)}
    for name, rows in found.items():
        shares = [calls * cost / 1e3 / ms for (ms, calls), cost in zip(rows, one, strict=True)]
        figures[name] = {
            "step_ms": Spread.of([ms for ms, _ in rows]),
            "collectives": max(calls for _, calls in rows),
            "percent_of_a_step": Spread.of([100 * share for share in shares]),
        }
    return figures


def main() -> None:
    """Measure on both ranks; rank 0 prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("cpu:gloo,tpu:tpu_dist")
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
    figures = measure(args.rounds)
    if dist.get_rank() == 0:
        print(f"agreement {figures['agreement_us']} us")
        for name in ("fused", "compiled_blocks"):
            print(name, {key: str(value) for key, value in figures[name].items()})
        if not args.no_save:
            print(f"saved to {save('agreement_cost_2_ranks', figures).name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
