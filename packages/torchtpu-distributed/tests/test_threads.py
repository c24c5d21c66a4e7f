# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process train as one CPU process with the whole batch does."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.threads import run_as_threads

WIDTH = 64


def network() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = [(WIDTH, 8), (WIDTH,), (8, WIDTH), (8,)]
    return [torch.randn(shape, generator=generator) / 4 for shape in shapes]


def trained(device: str, rows: slice, wrap) -> list[torch.Tensor]:
    """Parameters after two steps on some rows of the batch."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(WIDTH, 8, generator=generator)[rows].to(device) for _ in range(2))
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
    for parameter, value in zip(model.parameters(), network(), strict=True):
        parameter.data.copy_(value)
    model = wrap(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return list(model.parameters())


def train_sharded() -> list[torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = dist.init_device_mesh("tpu", (size,))

    def shard(model):
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    each = WIDTH // size
    parameters = trained("tpu", slice(rank * each, (rank + 1) * each), shard)
    return [parameter.full_tensor().detach().cpu() for parameter in parameters]


def check(ranks: int) -> None:
    wanted = trained("cpu", slice(None), lambda model: model)
    for found in run_as_threads(train_sharded, ranks):
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-6)


def test_fsdp2_over_eight_threads_equals_one_process():
    check(8)


@pytest.mark.slow
def test_fsdp2_over_64_threads_equals_one_process():
    check(64)


def stumble() -> None:
    if dist.get_rank() == 2:
        raise KeyError("batch")
    dist.all_reduce(torch.ones(2, device="tpu"))


def test_mistake_of_one_thread_is_raised_with_its_rank():
    with pytest.raises(KeyError, match="batch") as caught:
        run_as_threads(stumble, 4)
    assert "rank 2 of 4" in "".join(caught.value.__notes__)
    assert run_as_threads(dist.get_rank, 3) == [0, 1, 2]


def nested() -> None:
    run_as_threads(dist.get_rank, 2)


def test_threads_of_a_rank_are_refused():
    with pytest.raises(ProcessGroupError, match="destroy_process_group"):
        run_as_threads(nested, 2)
