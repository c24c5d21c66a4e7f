# SPDX-License-Identifier: Apache-2.0
"""Data parallel training whose parts are not exact or differ by rank, by gloo and on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from feature_parts import batch, loss_of, net, whole
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor


def wrapped(device: str, group: dist.ProcessGroup, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net().to(device), process_group=group, **options)


def train(model: DistributedDataParallel, optimizer: Any, steps: int) -> list[Tensor]:
    for number in range(steps):
        rows = slice(dist.get_rank(), None, dist.get_world_size())
        x, y = (t[rows].to(model.module.first.weight.device) for t in batch(number))
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return [whole(p) for p in model.parameters()]


def hooked(
    hook: Callable[..., Any], state: Callable[[dist.ProcessGroup], Any]
) -> Callable[..., Any]:
    def run(device: str, group: dist.ProcessGroup) -> list[Tensor]:
        model = wrapped(device, group)
        model.register_comm_hook(state(group), hook)
        return train(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)

    return run


def built_in(device: str, group: dist.ProcessGroup) -> list[Tensor]:
    """PyTorch's C++ hook reads the future itself."""
    model = wrapped(device, group)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)


def joined_shards(device: str, group: dist.ProcessGroup) -> list[Tensor]:
    """Optimizer states are split between ranks, one of which has fewer batches."""
    model = wrapped(device, group, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=group, lr=0.01
    )
    with Join([model, optimizer]):
        train(model, optimizer, 3 - dist.get_rank() % 2)
    return [whole(p) for p in model.parameters()]


def delayed(device: str, group: dist.ProcessGroup) -> list[Tensor]:
    """One parameter is reduced late, which changes no value.

    PyTorch drops the work of the late reduction unwaited: on streams it is in order, by gloo it
    races with the optimizer (ranks then differ). Beside it stands training without the delay.
    """
    module = net().to(device)
    late = (
        {}
        if device == "cpu"
        else {
            "device_ids": [torch.device(device, torch.tpu.current_device())],
            "delay_all_reduce_named_params": [("last.weight", module.last.weight)],
            "param_to_hook_all_reduce": module.second.weight,
        }
    )
    model = DistributedDataParallel(module, process_group=group, **late)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)


def reduced_twice(device: str, group: dist.ProcessGroup) -> list[Tensor]:
    """A callback of each bucket's reduction reduces again, which changes no value.

    By gloo ranks may then call collectives in different orders; beside it stands no hook.
    """
    model = wrapped(device, group, bucket_cap_mb=1e-4)

    def reduce(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        def again(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            (total,) = done.value()
            dist.all_reduce(total, group=group)
            return total / dist.get_world_size() ** 2

        return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(again)

    if device != "cpu":
        model.register_comm_hook(None, lambda state, bucket: reduce(bucket))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)


def sparse_gradients(device: str, group: dist.ProcessGroup) -> list[Tensor]:
    """Each rank looks up other rows of a table."""
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.EmbeddingBag(20, 5, mode="sum", sparse=True).to(device), process_group=group
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        rows = torch.tensor([[number, 3, 3 + dist.get_rank()], [7, 7, 10 - dist.get_rank()]])
        optimizer.zero_grad()
        model(rows.to(device)).pow(2).mean().backward()
        optimizer.step()
    return [whole(p) for p in model.parameters()]


def low_rank(group: dist.ProcessGroup) -> powerSGD_hook.PowerSGDState:
    """Its hook reduces and waits in callbacks of a reduction."""
    return powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )


CASES: dict[str, Callable[[str, dist.ProcessGroup], list[Tensor]]] = {
    "fp16_hook": hooked(default_hooks.fp16_compress_hook, lambda group: group),
    # by its own name PyTorch refuses it on everything but CUDA and XPU
    "bf16_hook": hooked(
        lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket), lambda group: group
    ),
    "reduced_twice": reduced_twice,
    "sparse_gradients": sparse_gradients,
    "power_sgd": hooked(powerSGD_hook.powerSGD_hook, low_rank),
    "built_in": built_in,
    "joined_shards": joined_shards,
    "delayed": delayed,
}


def both(name: str) -> tuple[list[Tensor], list[Tensor]]:
    """What a case gives on CPU by gloo, and on the device."""
    gloo = dist.new_group(backend="gloo")
    return CASES[name]("cpu", gloo), CASES[name]("tpu", dist.group.WORLD)
