# SPDX-License-Identifier: Apache-2.0
"""DTensor, tensor parallel and checkpoints of DTensors against one process on the CPU."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import torch
from feature_parts import Pair, whole
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torchtpu_distributed import active

Tensor = torch.Tensor


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


def some_parameters_parallel() -> Pair:
    """Training where only some parameters of the optimizer are DTensors."""
    from torch.distributed.tensor import parallel

    torch.manual_seed(4)
    alone = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    model = copy.deepcopy(alone).to("tpu")
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    plan = {"1": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh, plan)
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(2))
    for network, operand in ((alone, x), (model, x.to("tpu"))):
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            network(operand).pow(2).mean().backward()
            optimizer.step()
    return [whole(p) for p in model.parameters()], [p.detach() for p in alone.parameters()]


def one_hot_rows() -> Pair:
    """One-hot rows of classes, which only all ranks together have all of."""
    size = dist.get_world_size()
    mesh = dist.init_device_mesh("tpu", (size,))
    classes = torch.arange(3 * size + 1).remainder(7).view(-1, 1)
    found, wanted = [], []
    for placement, count in itertools.product((Shard(0), Shard(1), Replicate()), (-1, 9)):
        spread = distribute_tensor(classes.to("tpu"), mesh, [placement])
        rows = nn.functional.one_hot(spread, count)
        assert rows.placements == (placement,) and rows.dtype == torch.int64
        found.append(whole(rows))
        wanted.append(nn.functional.one_hot(classes, count).float())
    partial = DTensor.from_local(classes.to("tpu"), mesh, [Partial()])
    found.append(whole(nn.functional.one_hot(partial, 7 * size)))
    wanted.append(nn.functional.one_hot(classes * size, 7 * size).float())
    return found, wanted


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


#: What this module compares.
FEATURES = (
    tensor_redistribution,
    tensor_parallel,
    some_parameters_parallel,
    one_hot_rows,
    loss_parallel,
)


def backward_mistake() -> str:
    """What is said of an index out of range in the backward pass of a parallel loss.

    There PyTorch looks up the weight of targets that are to be ignored, on the CPU too.
    """
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    scores = distribute_tensor(
        torch.zeros(2, 8, device="tpu", requires_grad=True), mesh, [Shard(1)]
    )
    targets, weight = torch.tensor([1, -100], device="tpu"), torch.ones(8, device="tpu")
    try:
        with loss_parallel():
            nn.functional.cross_entropy(scores, targets, weight).backward()
        torch.tpu.synchronize()
    except RuntimeError as error:
        return str(error)
    return "no error"


def lines_of_a_redistribution() -> list[dict[str, Any]]:
    """What the recorder says of the calls of a redistribution, forward and backward."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(4, 4, device="tpu"), mesh, [Shard(0)]).requires_grad_()
    x.redistribute(mesh, [Shard(1)]).to_local().sum().backward()
    return [entry["frames"][0] for entry in active.flight_recorder()["entries"][-2:]]


def random_compiled() -> Pair:
    """Dropout of a sharded tensor in a compiled function, and in the function alone."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(8, 8, device="tpu"), mesh, [Shard(0)])

    def double(x: DTensor) -> DTensor:
        return nn.functional.dropout(x * 2, 0.5) * 2

    results = []
    for function in (torch.compile(double, backend="aot_eager"), double):
        torch.manual_seed(3)
        results.append([whole(function(x)), whole(function(x)), torch.tpu.get_rng_state()])
    return results[0], results[1]
