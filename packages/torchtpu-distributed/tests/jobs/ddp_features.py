# SPDX-License-Identifier: Apache-2.0
"""Features of DistributedDataParallel against one process on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from feature_parts import Net, Pair, batch, distributed, expected, loss_of, net, share, trained
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor


def ddp(**options: Any) -> tuple[Net, DistributedDataParallel]:
    """The network on the device, alone and wrapped, in several buckets."""
    model = net().to("tpu")
    return model, DistributedDataParallel(model, bucket_cap_mb=3e-4, **options)


def ddp_bucket_views() -> Pair:
    """Gradients are views of the buckets."""
    return distributed(*ddp(gradient_as_bucket_view=True)), expected()


def ddp_static_graph() -> Pair:
    """The graph is declared not to change."""
    return distributed(*ddp(static_graph=True)), expected()


def ddp_unused_parameters() -> Pair:
    """A layer no rank uses."""
    return distributed(*ddp(find_unused_parameters=True), skip=True), expected(skip=True)


def ddp_no_sync() -> Pair:
    """Two micro-batches, of which only the second communicates."""
    model, wrapped = ddp()

    def step(number: int) -> Tensor:
        x, y = (share(t) for t in batch(number))
        with wrapped.no_sync():
            (loss_of(wrapped, x[:1], y[:1]) / 2).backward()
        return loss_of(wrapped, x[1:2], y[1:2]) / 2

    alone = net()

    def one(number: int) -> Tensor:
        rows = torch.arange(8).view(dist.get_world_size(), -1)[:, :2].flatten()
        x, y = batch(number)
        return loss_of(alone, x[rows], y[rows])

    return trained(model, step), trained(alone, one)


def ddp_comm_hooks() -> Pair:
    """A hook of PyTorch's own, and one that scales what was reduced."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, wrapped = ddp()
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    found = distributed(model, wrapped)

    def average_of_doubles(_state, bucket):  # PyTorch refuses annotations that are text
        work = dist.all_reduce(bucket.buffer().mul_(2), dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda done: done.value()[0].div_(2))

    model, wrapped = ddp()
    wrapped.register_comm_hook(None, average_of_doubles)
    return found + distributed(model, wrapped), expected() + expected()


def quantised_gradients(name: str) -> tuple[list[Tensor], list[Tensor], float]:
    """Gradients by a hook of PyTorch's that quantises them, those of one process, and a step.

    Each rank rounds its gradients to one of 255 steps between its smallest and its largest.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

    model = net().to("tpu")
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(dist.group.WORLD, getattr(quantization_hooks, name))
    loss_of(wrapped, *map(share, batch())).backward()
    alone = net()
    loss_of(alone, *batch()).backward()
    mine = net().to("tpu")
    loss_of(mine, *map(share, batch())).backward()
    flat = torch.cat([p.grad.flatten() for p in mine.parameters()])
    step = (flat.max().clamp(min=0) - flat.min().clamp(max=0)) / 255
    dist.all_reduce(step, dist.ReduceOp.MAX)
    gradients = [[p.grad.cpu() for p in of.parameters()] for of in (model, alone)]
    return gradients[0], gradients[1], step.item()


def ddp_join() -> Pair:
    """Rank 0 has one batch less than the others; sums of gradients over those that have one."""
    from torch.distributed.algorithms.join import Join

    model, wrapped = ddp()
    steps = 1 if dist.get_rank() == 0 else 2
    with Join([wrapped], enable=True):
        found = trained(model, lambda n: loss_of(wrapped, *map(share, batch(n))), steps)
    dist.broadcast(flat := torch.cat([p.flatten() for p in found]).to("tpu"), 1)
    alone = net()
    size = dist.get_world_size()

    def one(number: int) -> Tensor:
        x, y = batch(number)
        rows = slice(8 // size, 8) if number else slice(0, 8)
        weight = (size - 1) / size if number else 1.0  # DDP divides by the number of all ranks
        return loss_of(alone, x[rows], y[rows]) * weight

    wanted = trained(alone, one)
    return [flat.cpu()], [torch.cat([p.flatten() for p in wanted])]


def ddp_compiled() -> Pair:
    """torch.compile of the wrapped network."""
    model = net().to("tpu")
    compiled = torch.compile(DistributedDataParallel(model), backend="tpu")
    return distributed(model, compiled), expected()


def ddp_synchronised_batch_norm() -> Pair:
    """Statistics are those of the whole batch; running ones and gradients too."""

    def build() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    model = nn.SyncBatchNorm.convert_sync_batchnorm(build()).to("tpu")
    found = distributed(model, DistributedDataParallel(model))
    alone = build()
    wanted = trained(alone, lambda n: loss_of(alone, *batch(n)))
    names = ("running_mean", "running_var")
    return (
        found + [getattr(model[1], name).cpu() for name in names],
        wanted + [getattr(alone[1], name) for name in names],
    )


#: What this module compares.
FEATURES = (
    ddp_bucket_views,
    ddp_static_graph,
    ddp_unused_parameters,
    ddp_no_sync,
    ddp_comm_hooks,
    ddp_join,
    ddp_compiled,
    ddp_synchronised_batch_norm,
)
