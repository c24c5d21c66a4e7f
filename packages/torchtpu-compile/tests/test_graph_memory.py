# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that is out of memory says what fills the device, and where it was made."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torchtpu_core import _C

LINE = r"test_graph_memory\.py:\d+"


@pytest.fixture
def little_room() -> Iterator[None]:
    """Leaves 64 KiB on device 0."""
    torch.tpu.init()
    _C.set_memory_limit(0, torch.tpu.memory_allocated(0) + 64 * 1024)
    yield
    _C.set_memory_limit(0, torch.tpu.mem_get_info(0)[1])


@pytest.fixture
def no_limit() -> Iterator[None]:
    """No simulated HBM: what does not fit is found by XLA while it runs."""
    torch.tpu.init()
    limit = torch.tpu.mem_get_info(0)[1]
    _C.set_memory_limit(0, 0)
    yield
    _C.set_memory_limit(0, limit)


def pairs(x: Tensor) -> Tensor:
    return (x[:, None] + x).sort(1).values


def sum_of_pairs(x: Tensor) -> Tensor:
    return pairs(x).sum()


def checked_pairs(x: Tensor, index: Tensor) -> Tensor:
    return pairs(x).sum() + x[index].sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_graph_that_does_not_fit_lists_its_largest_values(
    little_room: None, *, dynamic: bool
) -> None:
    compiled = torch.compile(pairs, backend="tpu", dynamic=dynamic)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        compiled(torch.ones(300, device="tpu"))
    text = str(caught.value)
    assert "Use a smaller batch" in text
    shape = r"\[512, 512\] \(padded\)" if dynamic else r"\[300, 300\]"
    assert re.search(rf"GiB  float32 {shape}  of aten\.\w+.*{LINE} in pairs", text)


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_that_xla_does_not_get_is_out_of_memory_at_the_users_line(
    no_limit: None, *, dynamic: bool
) -> None:
    x = torch.ones(2**23, device="tpu")  # the pairs have more bytes than there are addresses
    result = torch.compile(sum_of_pairs, backend="tpu", dynamic=dynamic)(x)
    with pytest.raises(torch.OutOfMemoryError, match=rf"Use a smaller batch.*{LINE}"):
        result.item()
    assert x.sum().item() == 2**23


def test_check_of_a_program_without_memory_is_out_of_memory_at_the_users_line(
    no_limit: None,
) -> None:
    x, index = torch.ones(2**23, device="tpu"), torch.zeros(3, dtype=torch.long, device="tpu")
    result = torch.compile(checked_pairs, backend="tpu")(x, index)
    with pytest.raises(torch.OutOfMemoryError, match=rf"Use a smaller batch.*{LINE}"):
        result.item()
