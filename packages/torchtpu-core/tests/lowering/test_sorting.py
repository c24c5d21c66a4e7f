# SPDX-License-Identifier: Apache-2.0
"""Sorting and searching give CPU PyTorch's values and stable positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering.sorting import TABLE
from torchtpu_core.testing.lowering import check, lower

NAN = float("nan")
SPECIAL = torch.tensor([2.0, NAN, -0.0, 0.0, float("inf"), -1.0, 2.0, -NAN, float("-inf"), 1e-42])
TIES = torch.tensor([[3, 1, 3, 2], [0, 0, 5, 0], [2, 2, 1, 1]])
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stable_sort_gives_cpu_values_and_positions(dtype: torch.dtype, descending: bool) -> None:
    keywords = {"stable": True, "dim": 0, "descending": descending}
    check("aten::sort.stable", TIES.to(dtype), table=TABLE, **keywords)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sort_puts_nan_last_and_equates_zeros(dtype: torch.dtype, descending: bool) -> None:
    x = SPECIAL.to(dtype)
    keywords = {"stable": True, "dim": -1, "descending": descending}
    check("aten::sort.stable", x, table=TABLE, **keywords)


def test_sort_extreme_integers_gives_cpu_values() -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 0, -1], dtype=torch.int32)
    check("aten::sort.stable", x, stable=True, descending=True, table=TABLE)
    wide = torch.tensor([2**63 - 1, -(2**63), 0, -1])
    check("aten::sort.stable", wide, stable=True, descending=True, table=TABLE)


@pytest.mark.parametrize("x", [torch.tensor(3.0), torch.zeros(0), torch.zeros(2, 0)], ids=str)
def test_sort_of_no_dimension_or_element_gives_cpu_shape(x: torch.Tensor) -> None:
    check("aten::sort", x, table=TABLE)


TOPK: list[tuple[Any, ...]] = [
    (torch.randperm(20).float().reshape(4, 5), 2),
    (torch.randperm(20).float().reshape(4, 5), 3, 0, False),
    (torch.randperm(20).reshape(4, 5), 3, 1, False),
    (torch.randperm(20).bfloat16().reshape(4, 5), 5, 1, True, True),
    (torch.randperm(20).double().reshape(4, 5), 4, 0, False, True),
    (torch.randperm(20).to(torch.uint8), 4),
    (torch.tensor([1.0, NAN, float("inf"), -2.0, float("-inf")]), 3),
    (torch.tensor([1.0, NAN, float("inf"), -2.0, float("-inf")]), 5, 0, False),
    (torch.tensor([1.0, -NAN, float("inf")]), 2),
    (torch.tensor(4.0), 1),
    (torch.zeros(3, 4), 0),
]


@pytest.mark.parametrize("args", TOPK, ids=lambda a: str(a[1:]))
def test_topk_gives_cpu_values_and_positions(args: tuple[Any, ...]) -> None:
    check("aten::topk", *args, table=TABLE)


EDGES = torch.tensor([1.0, 2.0, 2.0, 5.0])
VALUES = torch.tensor([[0.0, 2.0], [5.0, 9.0], [NAN, 1.0]])
SEARCHES: list[tuple[Any, ...]] = [
    ("searchsorted.Tensor", EDGES, VALUES, {}),
    ("searchsorted.Tensor", EDGES, VALUES, {"right": True, "out_int32": True}),
    ("searchsorted.Tensor", EDGES.expand(3, 4).contiguous(), VALUES, {"side": "right"}),
    ("searchsorted.Tensor", EDGES[[3, 0, 2, 1]], VALUES, {"sorter": torch.tensor([1, 2, 3, 0])}),
    ("searchsorted.Tensor", torch.zeros(0), VALUES, {}),
    ("searchsorted.Scalar", EDGES, 2, {}),
    ("searchsorted.Scalar", EDGES.long(), 2.5, {}),
    ("bucketize.Tensor", VALUES, EDGES, {"right": True}),
    ("bucketize.Scalar", 2, EDGES, {}),
]


@pytest.mark.parametrize("case", SEARCHES, ids=lambda c: c[0])
def test_search_gives_cpu_positions(case: tuple[Any, ...]) -> None:
    check(f"aten::{case[0]}", *case[1:-1], table=TABLE, **case[-1])


@pytest.mark.parametrize("right", [False, True])
def test_search_in_a_long_sequence_bisects_to_cpu_positions(right: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 500, (3, 1001), generator=generator).sort().values
    values = torch.randint(-5, 510, (3, 400), generator=generator)
    check("aten::searchsorted.Tensor", edges, values, right=right, table=TABLE)


def test_isin_gives_cpu_membership() -> None:
    tests = torch.tensor([3, 0])
    check("aten::isin.Tensor_Tensor", TIES, tests, table=TABLE)
    check("aten::isin.Tensor_Tensor", TIES, tests, invert=True, table=TABLE)
    check("aten::isin.Tensor_Scalar", TIES, 2, table=TABLE)
    check("aten::isin.Scalar_Tensor", 2, TIES, table=TABLE)
    check("aten::isin.Tensor_Tensor", TIES, tests[:0], table=TABLE)
    many = torch.arange(0, 3000, 3)
    check("aten::isin.Tensor_Tensor", torch.arange(1000), many, table=TABLE)


def test_sorter_out_of_range_raises() -> None:
    row = next(r for r in TABLE if r.overload == "aten::searchsorted.Tensor")
    with pytest.raises(RuntimeError, match="sorter index out of range"):
        lower(row, (EDGES, VALUES), {"sorter": torch.tensor([0, 1, 2, 4])})
