# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules against one process on the CPU."""

from __future__ import annotations

import copy

import torch
from feature_parts import Pair
from torch import distributed as dist
from torch import nn

Tensor = torch.Tensor


def pipeline(schedule: str) -> Pair:
    """One stage per rank, with micro-batches."""
    from torch.distributed import pipelining

    size, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(6)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(size)]
    alone = nn.Sequential(*copy.deepcopy(layers))
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    nn.functional.mse_loss(alone(x), y).backward()
    device = torch.device("tpu", torch.tpu.current_device())
    stage = pipelining.PipelineStage(layers[rank].to(device), rank, size, device)
    made = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    losses: list[Tensor] = []
    if rank == 0:
        made.step(x.to(device))
    elif rank == size - 1:
        made.step(target=y.to(device), losses=losses)
    else:
        made.step()
    return (
        [p.grad.cpu() for p in layers[rank].parameters()],
        [p.grad for p in alone[rank].parameters()],
    )


def pipeline_fill_drain() -> Pair:
    """GPipe."""
    return pipeline("ScheduleGPipe")


def pipeline_one_forward_one_backward() -> Pair:
    """1F1B."""
    return pipeline("Schedule1F1B")


#: What this module compares.
FEATURES = (
    pipeline_fill_drain,
    pipeline_one_forward_one_backward,
)
