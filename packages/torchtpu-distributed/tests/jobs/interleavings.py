# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives over overlapping groups, with work that one rank does alone.

Every rank draws the same program from its seed and computes what all ranks should hold.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import distributed as dist

Tensor = torch.Tensor
STEPS = 10


def groups() -> list[tuple[list[int], Any]]:
    """All groups of two or more ranks, in the same order by everybody."""
    size = dist.get_world_size()
    chosen = [
        list(members)
        for count in range(2, size + 1)
        for members in itertools.combinations(range(size), count)
    ]
    return [(members, dist.new_group(members)) for members in chosen]


def run(seeds: list[int]) -> list[tuple[Tensor, Tensor]]:
    """What this rank holds after each program, and what it should hold."""
    made = groups()
    return [program(seed, made) for seed in seeds]


def program(seed: int, made: list[tuple[list[int], Any]]) -> tuple[Tensor, Tensor]:
    """One program over some of these groups."""
    draw, rank = random.Random(seed), dist.get_rank()
    alone = random.Random(f"{seed} {rank}")  # for what the other ranks need not know
    values = [torch.tensor([r + 1.0, seed % 7, -r]) for r in range(dist.get_world_size())]
    x = values[rank].to("tpu")
    works: list[Any] = []
    for _ in range(STEPS):
        members, group = draw.choice(made)
        kind, root = draw.choice(["sum", "max", "broadcast", "message"]), draw.choice(members)
        other, later = draw.choice([m for m in members if m != root]), draw.random() < 0.5
        if rank in members:
            works += step(kind, x, group, root, other, later)
        model(kind, values, members, root, other)
        if rank == draw.randrange(len(values)):
            (x * 2).sum().item()  # a value only this rank looks at
        if works and alone.random() < 0.5:
            works.pop().wait()
    for work in works:
        work.wait()
    return x.cpu(), values[rank]


def step(kind: str, x: Tensor, group: Any, root: int, other: int, later: bool) -> list[Any]:
    """One collective on this rank's tensor; its work, if it is to be waited for later."""
    if kind == "message":
        if dist.get_rank() == root:
            dist.send(x, other, group=group)
        elif dist.get_rank() == other:
            dist.recv(x, root, group=group)
        return []
    if kind == "broadcast":
        work = dist.broadcast(x, root, group=group, async_op=later)
    else:
        op = dist.ReduceOp.SUM if kind == "sum" else dist.ReduceOp.MAX
        work = dist.all_reduce(x, op, group=group, async_op=later)
    return [work] if later else []


def model(kind: str, values: list[Tensor], members: list[int], root: int, other: int) -> None:
    """The same on the values of all ranks."""
    if kind == "message":
        values[other] = values[root].clone()
        return
    stacked = torch.stack([values[m] for m in members])
    result = {"sum": stacked.sum(0), "max": stacked.amax(0), "broadcast": values[root]}[kind]
    for member in members:
        values[member] = result.clone()
