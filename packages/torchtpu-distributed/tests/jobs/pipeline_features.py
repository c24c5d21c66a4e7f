# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules against one process on the CPU."""

from __future__ import annotations

import copy

import torch
from feature_parts import Pair
from torch import distributed as dist
from torch import nn

Tensor = torch.Tensor


def pipeline(schedule: str, per_rank: int = 1, folded: bool = False) -> Pair:
    """Stages of a rank in turn, or from both ends if `folded`, with micro-batches."""
    from torch.distributed import pipelining

    size, rank = dist.get_world_size(), dist.get_rank()
    count = per_rank * size
    torch.manual_seed(6)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
    alone = nn.Sequential(*copy.deepcopy(layers))
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    nn.functional.mse_loss(alone(x), y).backward()
    device = torch.device("tpu", torch.tpu.current_device())
    mine = [rank, count - 1 - rank] if folded else list(range(rank, count, size))
    stages = [pipelining.PipelineStage(layers[i].to(device), i, count, device) for i in mine]
    made = getattr(pipelining, schedule)(
        stages[0] if per_rank == 1 else stages,
        n_microbatches=8,
        loss_fn=nn.functional.mse_loss,
    )
    inputs = [x.to(device)] if 0 in mine else []
    made.step(*inputs, target=y.to(device) if count - 1 in mine else None, losses=[])
    return (
        [p.grad.cpu() for i in mine for p in layers[i].parameters()],
        [p.grad for i in mine for p in alone[i].parameters()],
    )


def pipeline_fill_drain() -> Pair:
    """GPipe."""
    return pipeline("ScheduleGPipe")


def pipeline_one_forward_one_backward() -> Pair:
    """1F1B."""
    return pipeline("Schedule1F1B")


def pipeline_interleaved() -> Pair:
    """1F1B of two stages per rank."""
    return pipeline("ScheduleInterleaved1F1B", 2)


def pipeline_zero_bubble() -> Pair:
    """Gradients of inputs and of weights apart, of two stages per rank."""
    return pipeline("ScheduleInterleavedZeroBubble", 2)


def pipeline_zero_bubble_folded() -> Pair:
    """The same, where the first rank has the last stage too."""
    return pipeline("ScheduleZBVZeroBubble", 2, folded=True)


#: What this module compares.
FEATURES = (
    pipeline_fill_drain,
    pipeline_one_forward_one_backward,
    pipeline_interleaved,
    pipeline_zero_bubble,
    pipeline_zero_bubble_folded,
)
