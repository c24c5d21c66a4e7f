# SPDX-License-Identifier: Apache-2.0
"""Messages of a rank to itself, and mistakes within a batch of messages."""

from __future__ import annotations

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


def misfit(device: str) -> None:
    """A message of another size."""
    rank = dist.get_rank()
    dist.isend(torch.ones(3, device=device), rank)
    _wait(dist.irecv(torch.ones(4, device=device), rank))


def _wait(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()
