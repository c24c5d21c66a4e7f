# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors that share elements: ``_foreach_*_`` takes them one by one, as on CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def _copy(x: Tensor) -> list[Tensor]:
    torch._foreach_copy_([x[:3], x[2:5]], [torch.ones(3), torch.zeros(3)])
    return [x]


def _operands(x: Tensor) -> list[Tensor]:
    torch._foreach_addcmul_([x, x[1:]], [x, x[1:]], [x, x[1:]], value=2)
    return [x]


CALLS: dict[str, Callable[[Tensor], object]] = {
    "same twice": lambda x: torch._foreach_add_([x, x], 1),
    "overlapping": lambda x: torch._foreach_mul_([x[:4], x[2:]], [2.0, 3.0]),
    "within": lambda x: torch._foreach_add_([x, x[1:2], x[4:]], 1),
    "rows and a column": lambda x: torch._foreach_add_([x.view(2, 3), x.view(2, 3)[:, 1]], 1),
    "read by another": lambda x: torch._foreach_lerp_([x, x], [x * 2, x * 3], 0.5),
    "copies": _copy,
    "operands": _operands,
    "apart": lambda x: torch._foreach_add_([x[:3], x[3:], x[:0]], 1),
    "interleaved": lambda x: torch._foreach_add_([x[::2], x[1::2]], [1.0, 2.0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_lists_that_share_elements(name: str) -> None:
    on_cpu, on_device = torch.arange(6.0), torch.arange(6.0).to("tpu")
    CALLS[name](on_cpu)
    CALLS[name](on_device)
    torch.testing.assert_close(on_device.cpu(), on_cpu)


def test_lists_that_share_a_storage_only_are_one_program() -> None:
    x = torch.arange(6.0).to("tpu")
    torch.tpu.synchronize()
    before = torch.tpu.counters()["ops"]
    torch._foreach_add_([x[:3], x[3:]], 1)
    assert torch.tpu.counters()["ops"] == before + 1
    torch._foreach_add_([x[:4], x[3:]], 1)
    assert torch.tpu.counters()["ops"] == before + 3
