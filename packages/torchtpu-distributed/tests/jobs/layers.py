# SPDX-License-Identifier: Apache-2.0
"""FSDP2's layers of one shape, called in a loop: their collectives differ by the module only.

As a script: after a good pass rank 1 calls its layers in another order.
A rank that gets an error prints ``ERROR <class>: <message>`` and ends with code 3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from torch import distributed as dist
from torch import nn
from torch.profiler import record_function
from torchtpu_distributed.active import flight_recorder


class Layers(nn.Module):
    """Layers of one shape; `named` is how the user's own range around each is called."""

    def __init__(self, named: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.named = named

    def forward(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """`(rows, 4)` to `(rows, 4)`."""
        for number in order:
            with record_function(self.named):
                x = self.layers[number](x)
        return x


def sharded(named: str, wrapped: bool) -> Layers:
    """fully_shard of each layer, which a wrapper may hold."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    model = Layers(named).to("tpu")
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    for number, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh)
        if wrapped:
            model.layers[number] = checkpoint_wrapper.checkpoint_wrapper(layer)
    return fully_shard(model, mesh=mesh)


def modules_of_collectives() -> list[str]:
    """What the recorder says of a pass on ranks that name ranges and wrap layers differently."""
    rank = dist.get_rank()
    before = len(recorded())
    model = sharded(f"FSDP::all_gathers of rank {rank}", wrapped=rank == 1)
    model(torch.ones(2, 4, device="tpu"), [0, 2, 1]).sum().backward()
    with record_function("FSDP::post_backward_reduced"):
        dist.all_reduce(torch.ones(4, device="tpu"))
    return recorded()[before:]


def recorded() -> list[str]:
    """What the recorder says of the collectives so far."""
    return [entry["what"] for entry in flight_recorder()["entries"]]


def main() -> None:
    """Run one rank."""
    dist.init_process_group()
    rank = dist.get_rank()
    torch.tpu.set_device(rank)
    model, x = sharded(f"rank {rank}", wrapped=False), torch.ones(2, 4, device="tpu")
    model(x, [0, 1, 2])
    try:
        print(model(x, [0, 2, 1] if rank == 1 else [0, 1, 2]).sum().item())
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("no error of rank", os.environ["RANK"], flush=True)


if __name__ == "__main__":
    main()
