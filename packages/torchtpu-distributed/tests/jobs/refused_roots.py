# SPDX-License-Identifier: Apache-2.0
"""Ranks make one mistake with CPU tensors, and all go on to the next collective."""

from __future__ import annotations

import torch
from torch import distributed as dist


def reduce_after_refusal() -> tuple[str, float]:
    """Rank 0 calls the next one before rank 1 makes the mistake too."""
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    if rank == 1:
        store.wait(["refused"])
    refused = ""
    try:
        dist.broadcast(torch.ones(3), 7)
    except RuntimeError as error:
        refused = str(error)
    x = torch.full((2,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        store.set("refused", "")
    work.wait()
    store.delete_key("refused")
    return refused, float(x[0])
