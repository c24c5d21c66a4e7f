# SPDX-License-Identifier: Apache-2.0
"""Features of FSDP2 against one process on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from feature_parts import (
    Net,
    Pair,
    batch,
    distributed,
    expected,
    loss_of,
    net,
    share,
    trained,
    whole,
)
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

Tensor = torch.Tensor


def sharded(mesh: DeviceMesh | None = None, **options: Any) -> Net:
    """fully_shard of each layer and of the whole."""
    from torch.distributed.fsdp import fully_shard

    model = net().to("tpu")
    mesh = mesh or dist.init_device_mesh("tpu", (dist.get_world_size(),))
    for layer in (model.first, model.second, model.last):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp_reshard_policies() -> Pair:
    """Parameters stay whole, go back to shards, or to shards of two ranks."""
    found: list[Tensor] = []
    for policy in (False, True, 2):
        model = sharded(reshard_after_forward=policy)
        found += distributed(model, model)
    return found, expected() * 3


def fsdp_mixed_precision() -> Pair:
    """bfloat16 compute with float32 reductions, against the same casts in one process."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(mp_policy=policy)
    found = trained(model, lambda n: loss_of(model, *map(share, batch(n))).float(), 1)
    return found, expected(1)


def fsdp_prefetch_and_clipping() -> Pair:
    """Explicit prefetch, and gradients clipped by their norm over all ranks."""
    model = sharded()
    model.first.set_modules_to_forward_prefetch([model.second])
    model.last.set_modules_to_backward_prefetch([model.second])
    loss_of(model, *map(share, batch())).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    found = [whole(norm), *(whole(p.grad) for p in model.parameters())]
    alone = net()
    loss_of(alone, *batch()).backward()
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    return found, [norm, *(p.grad for p in alone.parameters())]


def fsdp_offload() -> Pair:
    """Parameters, gradients and optimizer on the host."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    model = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(2):
        optimizer.zero_grad()
        loss_of(model, *map(share, batch(number))).backward()
        optimizer.step()
    return [p.detach().to("tpu").full_tensor().cpu() for p in model.parameters()], expected()


def fsdp_hybrid() -> Pair:
    """Sharded over two ranks, replicated over the others."""
    size = dist.get_world_size()
    mesh = dist.init_device_mesh("tpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh)
    return distributed(model, model), expected()


def fsdp_from_meta() -> Pair:
    """Made without memory, sharded, then given memory and values."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Net()
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    model.to_empty(device="tpu")
    full = net().state_dict()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(distribute_tensor(full[name].to("tpu"), mesh, [Shard(0)]))
    return distributed(model, model), expected()


def two_kinds_of_parallelism() -> Pair:
    """Tensor parallel within pairs, FSDP2 over the pairs."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    size = dist.get_world_size()
    mesh = dist.init_device_mesh("tpu", (size // 2, 2), mesh_dim_names=("data", "model"))
    model = net().to("tpu")
    plan = {"first": parallel.ColwiseParallel(), "second": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh["model"], plan)
    fully_shard(model, mesh=mesh["data"])
    rank = mesh["data"].get_local_rank()

    def step(number: int) -> Tensor:
        return loss_of(model, *(share(t, size // 2, rank) for t in batch(number)))

    return trained(model, step), expected()


#: What this module compares.
FEATURES = (
    fsdp_reshard_policies,
    fsdp_mixed_precision,
    fsdp_prefetch_and_clipping,
    fsdp_offload,
    fsdp_hybrid,
    fsdp_from_meta,
    two_kinds_of_parallelism,
)
