# SPDX-License-Identifier: Apache-2.0
"""Calls of a process group itself where PyTorch makes new tensors on another device than the CPU.

The functions of `torch.distributed` are not told: PyTorch suspends the mode in them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


def gathered_into_columns(device: str, mine: Tensor) -> Tensor:
    """What all ranks give, each in a column of one tensor."""
    x = mine.to("tpu")
    table = torch.zeros(len(x), dist.get_world_size(), dtype=x.dtype, device="tpu")
    with torch.device(device):
        dist.group.WORLD.allgather([list(table.unbind(1))], [x]).wait()
    return table.cpu()


def exchanged(device: str, mine: list[Tensor]) -> list[Tensor]:
    """What the ranks give this one."""
    pieces = [t.to("tpu") for t in mine]
    received = [torch.zeros_like(t) for t in pieces]
    with torch.device(device):
        dist.group.WORLD.alltoall(received, pieces).wait()
    return [t.cpu() for t in received]
