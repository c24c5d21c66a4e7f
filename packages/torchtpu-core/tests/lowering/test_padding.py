# SPDX-License-Identifier: Apache-2.0
"""Padding against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering.padding import TABLE
from torchtpu_core.testing.lowering import check

_GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR)


SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 4, 5, 4)}
SIZES = {
    1: [[2, 1], [0, 3], [-1, 2]],
    2: [[1, 2, 3, 0], [0, 0, 1, 1], [2, -1, -2, 1]],
    3: [[1, 2, 0, 3, 2, 1]],
}
CASES = [(spatial, size) for spatial, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize(("spatial", "size"), CASES)
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_equals_cpu(kind: str, spatial: int, size: list[int]) -> None:
    overload, x = f"aten::{kind}_pad{spatial}d", rand(*SHAPES[spatial])
    check(overload, x, size, table=TABLE)
    op = getattr(torch.ops.aten, overload.removeprefix("aten::"))
    check(f"{overload}_backward", rand(*op(x, size).shape), x, size, table=TABLE)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_without_batch_equals_cpu(kind: str) -> None:
    check(f"aten::{kind}_pad2d", rand(3, 4, 5), [1, 2, 2, 1], table=TABLE)


@pytest.mark.parametrize("pad", [[1, 2], [0, 0, 3, 1], [-1, 2, 1, -2], []])
@pytest.mark.parametrize("value", [0, 2.5, float("-inf")])
def test_constant_pad_equals_cpu(pad: list[int], value: float) -> None:
    check("aten::constant_pad_nd", rand(2, 3, 4), pad, value, table=TABLE)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_constant_pad_in_other_dtypes_equals_cpu(dtype: torch.dtype) -> None:
    check("aten::constant_pad_nd", rand(3, 4).to(dtype), [1, 2], 1, table=TABLE)


def test_constant_pad_of_nothing_equals_cpu() -> None:
    check("aten::constant_pad_nd", rand(0, 3), [1, 0, 2, 0], 1.0, table=TABLE)
