# SPDX-License-Identifier: Apache-2.0
"""Ops with data-dependent shapes give CPU PyTorch's values (composites run here on CPU)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torchtpu_core.lowering import unique
from torchtpu_core.lowering.unique import TABLE
from torchtpu_core.testing.lowering import check

X = torch.tensor([[0.0, 2.0, 2.0], [3.0, 0.0, 2.0]])
INPUTS = (X, X.int(), X > 0, torch.zeros(0), torch.tensor(5.0), torch.tensor([float("nan")] * 2))
FLAGS = list(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("size", [0, 2, 4, 9])
def test_nonzero_static_gives_cpu_positions(size: int) -> None:
    check("aten::nonzero_static", X, size=size, table=TABLE)
    check("aten::nonzero_static", X > 1, size=size, fill_value=7, table=TABLE)


@pytest.mark.parametrize("x", [torch.tensor(2.0), torch.zeros(0, 3), torch.zeros(4)], ids=str)
def test_nonzero_static_of_edge_shapes_gives_cpu_positions(x: torch.Tensor) -> None:
    check("aten::nonzero_static", x, size=1, table=TABLE)


@pytest.mark.parametrize("x", [*INPUTS, torch.arange(10)], ids=str)
def test_nonzero_gives_cpu_positions(x: torch.Tensor) -> None:
    torch.testing.assert_close(unique._nonzero(x), torch.nonzero(x))


def test_padded_count_is_the_next_power_of_two() -> None:
    assert [unique.padded_count(n) for n in (0, 1, 2, 3, 8, 9)] == [0, 1, 2, 4, 8, 16]


def test_masked_select_broadcasts_as_cpu() -> None:
    mask = torch.tensor([[True], [False]])
    torch.testing.assert_close(unique._masked_select(X[0], mask), X[0].masked_select(mask))
    torch.testing.assert_close(unique._masked_select(X, mask), X.masked_select(mask))


@pytest.mark.parametrize("x", INPUTS, ids=str)
@pytest.mark.parametrize(("inverse", "counts"), FLAGS)
def test_unique_gives_cpu_values(x: torch.Tensor, inverse: bool, counts: bool) -> None:
    expected = torch.ops.aten._unique2(x, True, inverse, counts)
    actual = unique._unique2(x, True, inverse, counts)
    torch.testing.assert_close(actual, tuple(expected), equal_nan=True)


@pytest.mark.parametrize("x", INPUTS, ids=str)
@pytest.mark.parametrize(("inverse", "counts"), FLAGS)
def test_unique_consecutive_gives_cpu_values(x: torch.Tensor, inverse: bool, counts: bool) -> None:
    expected = torch.ops.aten.unique_consecutive(x, inverse, counts)
    actual = unique._unique_consecutive(x, inverse, counts)
    torch.testing.assert_close(actual, tuple(expected), equal_nan=True)


@pytest.mark.parametrize("dim", [0, -1])
def test_unique_consecutive_rows_gives_cpu_values(dim: int) -> None:
    x = torch.tensor([[1, 1, 2], [1, 1, 2], [0, 0, 2]])
    expected = torch.ops.aten.unique_dim_consecutive(x, dim, True, True)
    actual = unique._unique_consecutive(x, True, True, dim)
    torch.testing.assert_close(actual, tuple(expected))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_unique_slices_give_cpu_values(dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (6, 3, 2), generator=generator).to(dtype)
    expected = torch.ops.aten.unique_dim(x, dim, True, True, True)
    torch.testing.assert_close(unique._unique_dim(x, dim, True, True, True), tuple(expected))


def test_unique_slices_of_empty_operands_do_as_cpu() -> None:
    none = torch.zeros(0, 3)
    expected = torch.ops.aten.unique_dim(none, 0, True, True, True)
    torch.testing.assert_close(unique._unique_dim(none, 0, True, True, True), tuple(expected))
    with pytest.raises(RuntimeError, match="0 sized dimensions"):
        unique._unique_dim(none, 1)
