# SPDX-License-Identifier: Apache-2.0
"""Messages of a rank to itself, and mistakes within a batch of messages."""

from __future__ import annotations

import math
import warnings

import torch
import torch.distributed as dist
from torch import Tensor


def exchanged(device: str, mine: Tensor) -> list[Tensor]:
    """By both ranks and in a group of one: in a batch, received first, by tags, in order."""
    x, rank = mine.to(device), dist.get_rank()
    results = [torch.zeros_like(x) for _ in range(6)]
    batch = [dist.P2POp(dist.isend, x, rank), dist.P2POp(dist.irecv, results[0], rank)]
    _wait(*dist.batch_isend_irecv(batch))
    received = dist.irecv(results[1], rank, tag=3)
    _wait(dist.isend(x + 1, rank, tag=4), dist.isend(x + 2, rank, tag=3), received)
    _wait(dist.irecv(results[2], rank, tag=4))
    y = x + 3
    sent = [dist.isend(y, rank)]
    sent[0].wait()
    y += 1  # what was sent is not changed
    sent.append(dist.isend(y, rank))
    _wait(dist.irecv(results[3], rank), dist.irecv(results[4], rank), *sent)
    alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank]
    ring = [
        dist.P2POp(dist.irecv, results[5], group=alone, group_peer=0),
        dist.P2POp(dist.isend, x + 5, group=alone, group_peer=0),
    ]
    _wait(*dist.batch_isend_irecv(ring))
    dist.destroy_process_group(alone)
    return [r.cpu() for r in results]


def after_a_mistake(mine: Tensor) -> tuple[str, Tensor, Tensor]:
    """What a bad batch says, and a good batch and a collective after it."""
    x, other = mine.to("tpu"), dist.get_rank() ^ 1
    said = ""
    try:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, group_peer=2)])
    except ValueError as error:
        said = str(error)
    received = torch.empty_like(x)
    batch = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, x, other)]
    _wait(*dist.batch_isend_irecv(batch))
    dist.all_reduce(x)
    return said, received.cpu(), x.cpu()


def misfit(device: str, way: str) -> tuple[str, float]:
    """What a message of another size says, and a collective after it.

    Args:
        device: where its tensors are.
        way: ``wait``; ``ask``, whether it has come, before that; or ``drop``, which does not wait.
    """
    rank = dist.get_rank()
    dist.isend(torch.ones(3, device=device), rank)
    said, work = "", dist.irecv(torch.ones(4, device=device), rank)
    assert work is not None
    if way == "ask":
        while not work.is_completed():
            pass
    if way != "drop":
        try:
            work.wait()
        except ValueError as error:
            said = str(error)
    del work
    total = torch.ones(2, device=device)
    dist.all_reduce(total)
    dist.barrier()
    return said, total[0].item()


def from_any(device: str) -> tuple[list[Tensor], list[int], str]:
    """Messages from whoever sends one: of oneself, of the other, and where one cannot tell."""
    rank = dist.get_rank()
    mine, other = torch.full((3,), float(rank), device=device), rank ^ 1
    results, sources = [torch.empty_like(mine) for _ in range(4)], []
    sent = dist.isend(mine, rank, tag=1)
    received = dist.irecv(results[0], tag=1)
    _wait(sent, received)
    sources.append(received._source_rank())
    alone = [dist.new_group([each]) for each in range(2)][rank]
    received = dist.irecv(results[1], group=alone)
    _wait(dist.isend(mine, rank, group=alone), received)
    sources.append(received._source_rank())
    dist.destroy_process_group(alone)

    received = dist.irecv(results[2], tag=2)
    said = ""
    try:
        dist.isend(mine, rank, tag=2)
    except ValueError as error:
        said = str(error)
    _wait(dist.isend(mine, other, tag=2), received)
    sources.append(received._source_rank())
    _wait(dist.isend(mine, rank, tag=2), dist.irecv(results[3], rank, tag=2))
    return [r.cpu() for r in results], sources, said


def reshaped(device: str) -> tuple[list[float], list[str]]:
    """A message from rank 1 into another shape: what arrives, and the warnings.

    Its tag is that of no other job: messages of one that was received from any rank and from a
    certain one are not compared any more.
    """
    rank, tag = dist.get_rank(), 31
    x = torch.arange(8.0, device=device).view(2, 4) * rank
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        if rank == 1:
            sent = dist.isend(x, 0, tag=tag)
            dist.barrier()
            _wait(sent)
        else:
            dist.barrier()
            x = torch.zeros(8, device=device)
            dist.recv(x, 1, tag=tag)
    dist.barrier()
    return x.flatten().tolist(), [str(each.message) for each in noted]


def one_more_dimension(device: str) -> tuple[list[float], list[str]]:
    """Messages from rank 1 into shapes with other dimensions of size 1; see `reshaped`."""
    rank, found = dist.get_rank(), []
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for tag, (sent, received) in enumerate([((), (1,)), ((2, 1, 3), (1, 2, 3))], 41):
            size = math.prod(sent)
            if rank == 1:
                work = dist.isend(torch.arange(float(size), device=device).view(sent), 0, tag=tag)
            dist.barrier()
            if rank == 1:
                _wait(work)
            else:
                into = torch.full(received, 9.0, device=device)
                dist.recv(into, 1, tag=tag)
                found += into.flatten().tolist()
    dist.barrier()
    return found, [str(each.message) for each in noted]


def _wait(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()
