# SPDX-License-Identifier: Apache-2.0
"""What the pickler of `multiprocessing` makes of tensors: queues and arguments use it."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing import reductions
from torchtpu_core import interprocess


def sent(value: Any) -> Any:
    """A value as another process would receive it."""
    return pickle.loads(ForkingPickler.dumps(value))


@pytest.fixture(autouse=True)
def _told() -> None:
    """The warning of the first copy is in the past, but for the test of it."""
    with pytest.warns(UserWarning, match="as copies"):
        interprocess._tell_once.cache_clear()
        interprocess._tell_once()


def test_tensor_and_its_view_arrive_on_their_device_and_alias() -> None:
    x = torch.arange(8.0, device="tpu:1")
    whole, part = sent((x, x[4::2]))
    assert (part.device, part.storage_offset(), part.stride()) == (x.device, 4, (2,))
    part.mul_(10)
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0, 40.0, 5.0, 60.0, 7.0]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64])
def test_every_dtype_arrives(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2]).to(dtype)
    assert torch.equal(sent(x.to("tpu")).cpu(), x)


def test_empty_tensor_arrives() -> None:
    got = sent(torch.empty(0, 3, device="tpu"))
    assert (got.shape, got.device.type) == ((0, 3), "tpu")


def test_tensor_arrives_under_a_default_device() -> None:
    x = torch.arange(3, device="tpu")
    with torch.device("tpu"):
        got = sent(x)
    assert got.tolist() == [0, 1, 2]


def test_module_arrives_with_its_parameters() -> None:
    module = nn.Linear(3, 2).to("tpu")
    got = sent(module)
    assert isinstance(got.weight, nn.Parameter)
    x = torch.ones(1, 3, device="tpu")
    assert torch.equal(got(x).cpu(), module(x).cpu())


def test_first_copy_says_that_later_writes_are_not_seen() -> None:
    interprocess._tell_once.cache_clear()
    with pytest.warns(UserWarning, match="the other does not see"):
        sent(torch.ones(2, device="tpu"))


def test_storage_of_the_cpu_goes_pytorchs_way() -> None:
    storage = torch.ones(2).untyped_storage()
    reduce = ForkingPickler._extra_reducers[torch.UntypedStorage]
    assert reduce(storage)[0] is reductions.rebuild_storage_fd
