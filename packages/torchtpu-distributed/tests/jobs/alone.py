# SPDX-License-Identifier: Apache-2.0
"""Steps in which one rank does work of its own: what the others need not know of."""

from __future__ import annotations

import io
import random
from importlib.util import find_spec

import torch
from torch import distributed as dist

Tensor = torch.Tensor


def run(steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """A running sum over the ranks while rank 0 does random things; what it is, and should be."""
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = random.Random(f"{seed} {rank}")
    total = torch.zeros(8, device="tpu", dtype=torch.int64)
    for step in range(steps):
        x = torch.arange(8, device="tpu") * (rank + 1) + step
        work = dist.all_reduce(x, async_op=step % 2 == 1)
        if work is not None:
            work.wait()
        total += x
        if rank == 0 and draw.random() < 0.7:
            WORKS[draw.randrange(len(WORKS))](total, draw)
    ranks = size * (size + 1) // 2
    wanted = torch.arange(8) * ranks * steps + size * sum(range(steps))
    return total.cpu(), wanted


def look(total: Tensor, draw: random.Random) -> None:
    """Log a value."""
    int(total.sum().item())


def compute(total: Tensor, draw: random.Random) -> None:
    """Extra ops, of a size nobody had before, whose result nobody reads."""
    y = torch.ones(draw.randrange(1, 40), device="tpu")
    for _ in range(draw.randrange(1, 5)):
        y = torch.tanh(y) + total[0]


def save(total: Tensor, draw: random.Random) -> None:
    """A checkpoint of one's own."""
    torch.save({"total": total}, io.BytesIO())


def recompile(total: Tensor, draw: random.Random) -> None:
    """A compiled function of a new size."""
    size = draw.randrange(2, 12)
    _compiled(torch.ones(size, device="tpu"))


@torch.compile(dynamic=False)
def _compiled(x: Tensor) -> Tensor:
    return (x * 2).sum()


_ALWAYS = (look, compute, save)
#: What rank 0 does on its own; compiling is of another distribution, which may be absent.
WORKS = (*_ALWAYS, recompile) if find_spec("torchtpu_compile") else _ALWAYS
