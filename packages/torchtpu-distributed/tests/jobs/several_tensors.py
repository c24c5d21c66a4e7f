# SPDX-License-Identifier: Apache-2.0
"""Calls of a process group itself with two tensors of one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from collectives import refusal
from torch import Tensor
from torch import distributed as dist


def refused(kind: str) -> tuple[str, Tensor]:
    """What is said of two tensors, and a sum after it."""
    two = [torch.ones(2, device="tpu"), torch.ones(2, device="tpu")]
    lists, group = [two, two], dist.group.WORLD
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.allreduce(two),
        "reduce": lambda: group.reduce(two, dist.ReduceOptions()),
        "broadcast": lambda: group.broadcast(two, dist.BroadcastOptions()),
        "all_gather": lambda: group.allgather(lists, two),
        "gather": lambda: group.gather(lists, two, dist.GatherOptions()),
        "scatter": lambda: group.scatter(two, lists, dist.ScatterOptions()),
        "reduce_scatter": lambda: group.reduce_scatter(two, lists, dist.ReduceScatterOptions()),
    }
    return refusal(calls[kind])


def own_piece_of_another_size(kind: str) -> tuple[str, Tensor]:
    """What is said of a piece for the rank itself that it expects longer, and a sum after it."""
    size, rank = dist.get_world_size(), dist.get_rank()
    sent = [torch.ones(1 if i == rank else 3, device="tpu") for i in range(size)]
    received = [torch.zeros(3, device="tpu") for _ in range(size)]
    x, rows = torch.cat(sent), [len(piece) for piece in sent]
    whole = torch.cat(received)
    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: dist.all_to_all(received, sent),
        "splits": lambda: dist.all_to_all_single(whole, x, [3] * size, rows),
    }
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    return refusal(calls[kind])
