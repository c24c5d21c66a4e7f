# SPDX-License-Identifier: Apache-2.0
"""Jobs that train a small model on this rank's share of a batch."""

from __future__ import annotations

import copy

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor


def model() -> nn.Sequential:
    """The same small network on every call; its last layer is odd-sized on purpose."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))


def steps(network: nn.Module, inputs: Tensor, targets: Tensor, count: int) -> list[Tensor]:
    """Losses of some steps of SGD."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(count):
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def share(batch: Tensor) -> Tensor:
    """This rank's rows of a batch, on its device."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()].to("tpu")


def data_parallel(
    bucket_mib: float, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """DistributedDataParallel: mean losses and trained parameters."""
    network = model().to("tpu")
    wrapped = DistributedDataParallel(network, bucket_cap_mb=bucket_mib)
    losses = torch.stack(steps(wrapped, share(inputs), share(targets), 3))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses.cpu(), [p.detach().cpu() for p in network.parameters()]


def fully_sharded(inputs: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
    """fully_shard (FSDP2) of each layer and the whole: mean losses and full parameters."""
    from torch.distributed.fsdp import fully_shard

    network = copy.deepcopy(model()).to("tpu")
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    losses = torch.stack(steps(network, share(inputs), share(targets), 3))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses.cpu(), [p.full_tensor().detach().cpu() for p in network.parameters()]


def wrapped(
    inputs: Tensor, targets: Tensor, dtype: torch.dtype, count: int
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """FullyShardedDataParallel (FSDP1) of each layer and the whole, in a dtype.

    Returns:
        Mean losses, full parameters, and the full gradients of the last step.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    network = FullyShardedDataParallel(
        model().to("tpu", dtype),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("tpu", dist.get_rank()),
        use_orig_params=True,
    )
    rows = [share(batch).to(dtype) for batch in (inputs, targets)]
    losses = torch.stack(steps(network, *rows, count))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    with FullyShardedDataParallel.summon_full_params(network, with_grads=True):
        parameters = [p.detach().cpu().clone() for p in network.parameters()]
        gradients = [p.grad.cpu().clone() for p in network.parameters()]
    return losses.cpu(), parameters, gradients
