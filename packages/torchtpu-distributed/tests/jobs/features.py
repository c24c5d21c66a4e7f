# SPDX-License-Identifier: Apache-2.0
"""Features of DDP, FSDP2, DTensor, pipelines and checkpoints against one process on the CPU.

A feature returns what the ranks computed and what one CPU process computes from the
whole batch; both are lists of CPU tensors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

Tensor = torch.Tensor
Pair = tuple[list[Tensor], list[Tensor]]


class Net(nn.Module):
    """Three linear layers of odd sizes, one of which a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 10)
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        """`(rows, 6)` to `(rows, 3)`."""
        x = torch.tanh(self.first(x))
        return self.last(x if skip else torch.relu(self.second(x)))


def net() -> Net:
    """The same network on every call."""
    torch.manual_seed(3)
    return Net()


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs `(8, 6)` and targets `(8, 3)` on the CPU."""
    generator = torch.Generator().manual_seed(5 + number)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def share(x: Tensor, ranks: int | None = None, rank: int | None = None) -> Tensor:
    """This rank's rows, on its device."""
    return x.chunk(ranks or dist.get_world_size())[dist.get_rank() if rank is None else rank].to(
        "tpu"
    )


def loss_of(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(model(x, **options), y)


def whole(value: Tensor) -> Tensor:
    """A tensor or DTensor as a full CPU tensor."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().float().cpu()


def trained(model: nn.Module, step: Callable[[int], Tensor], count: int = 2) -> list[Tensor]:
    """Parameters after some steps of SGD on the gradients of `step(number)`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(count):
        optimizer.zero_grad()
        loss = step(number)
        if loss is not None:
            loss.backward()
        optimizer.step()
    return [whole(p) for p in model.parameters()]


def expected(count: int = 2, **options: Any) -> list[Tensor]:
    """What one CPU process gets."""
    model = net()
    return trained(model, lambda n: loss_of(model, *batch(n), **options), count)


def distributed(model: nn.Module, wrapped: nn.Module, **options: Any) -> list[Tensor]:
    """What the ranks get, each from its rows."""
    return trained(model, lambda n: loss_of(wrapped, *map(share, batch(n)), **options))


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


def tensor_redistribution() -> Pair:
    """Between all pairs of placements, on one and on two axes."""
    found, wanted = [], []
    size = dist.get_world_size()
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    line = dist.init_device_mesh("tpu", (size,))
    kinds = [Shard(0), Shard(1), Replicate()]
    for source, target in itertools.product(kinds, kinds):
        moved = distribute_tensor(x.to("tpu"), line, [source]).redistribute(line, [target])
        found.append(whole(moved))
        wanted.append(x)
    partial = DTensor.from_local(x.to("tpu"), line, [Partial()])
    for target in kinds:
        found.append(whole(partial.redistribute(line, [target])))
        wanted.append(x * size)
    plane = dist.init_device_mesh("tpu", (2, size // 2))
    for source, target in itertools.product(itertools.product(kinds, kinds), repeat=2):
        moved = distribute_tensor(x.to("tpu"), plane, source).redistribute(plane, target)
        found.append(whole(moved))
        wanted.append(x)
    return found, wanted


def tensor_parallel() -> Pair:
    """Column- and row-wise layers, with the sequence sharded between them."""
    from torch.distributed.tensor import parallel

    torch.manual_seed(4)
    alone = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    model = copy.deepcopy(alone).to("tpu")
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    plan = {
        "0": parallel.SequenceParallel(),
        "1": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "3": parallel.RowwiseParallel(output_layouts=Replicate()),
    }
    parallel.parallelize_module(model, mesh, plan)
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(2))
    for network, operand in ((alone, x), (model, x.to("tpu"))):
        network(operand).pow(2).mean().backward()
    return [whole(p.grad) for p in model.parameters()], [p.grad for p in alone.parameters()]


def loss_parallel() -> Pair:
    """Cross entropy of logits that are sharded over the classes."""
    from torch.distributed.tensor.parallel import loss_parallel as sharded_loss

    generator = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(6, 8, generator=generator), torch.arange(6)
    alone = logits.clone().requires_grad_()
    wanted = nn.functional.cross_entropy(alone, labels)
    wanted.backward()
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    spread = distribute_tensor(logits.to("tpu"), mesh, [Shard(1)]).requires_grad_()
    with sharded_loss():
        loss = nn.functional.cross_entropy(spread, labels.to("tpu"))
        loss.backward()
    return [whole(loss), whole(spread.grad)], [wanted.detach(), alone.grad]


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


def checkpoint_resharded(folder: str) -> Pair:
    """Saved from shards over all ranks, loaded into shards of pairs."""
    from torch.distributed import checkpoint

    size = dist.get_world_size()
    x = torch.arange(35.0).view(7, 5)
    line = dist.init_device_mesh("tpu", (size,))
    plane = dist.init_device_mesh("tpu", (size // 2, 2))
    state = {"x": distribute_tensor(x.to("tpu"), line, [Shard(0)]), "step": 7}
    checkpoint.save(state, checkpoint_id=Path(folder))
    empty = distribute_tensor(torch.zeros_like(x).to("tpu"), plane, [Replicate(), Shard(1)])
    loaded: dict[str, Any] = {"x": empty, "step": 0}
    checkpoint.load(loaded, checkpoint_id=Path(folder))
    return [whole(loaded["x"]), torch.tensor(loaded["step"])], [x, torch.tensor(7)]


FEATURES: dict[str, Callable[[], Pair]] = {
    feature.__name__: feature
    for feature in (
        ddp_bucket_views,
        ddp_static_graph,
        ddp_unused_parameters,
        ddp_no_sync,
        ddp_comm_hooks,
        ddp_join,
        ddp_compiled,
        fsdp_reshard_policies,
        fsdp_mixed_precision,
        fsdp_prefetch_and_clipping,
        fsdp_offload,
        fsdp_hybrid,
        fsdp_from_meta,
        tensor_redistribution,
        tensor_parallel,
        loss_parallel,
        two_kinds_of_parallelism,
        pipeline_fill_drain,
        pipeline_one_forward_one_backward,
    )
}


def run(name: str) -> Pair:
    """One feature."""
    return FEATURES[name]()
