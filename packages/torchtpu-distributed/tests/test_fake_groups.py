# SPDX-License-Identifier: Apache-2.0
"""PyTorch's process groups without communication take tpu tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn

RANKS = 4


@pytest.fixture
def fake_group() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_collective_of_a_fake_group_leaves_the_tensor(fake_group):
    x = torch.arange(3.0, device="tpu")
    dist.all_reduce(x)
    assert x.tolist() == [0, 1, 2]


def test_fsdp2_over_a_fake_group_trains_the_shard_of_its_rank(fake_group):
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 2 * RANKS, bias=False, device="tpu")
    fully_shard(model, mesh=dist.init_device_mesh("tpu", (RANKS,)))
    model(torch.ones(3, 2, device="tpu")).sum().backward()
    assert model.weight.to_local().shape == model.weight.grad.to_local().shape == (2, 2)


def test_backend_of_tpu_tensors_stays_the_default():
    assert dist.get_default_backend_for_device("tpu") == "tpu_dist"
