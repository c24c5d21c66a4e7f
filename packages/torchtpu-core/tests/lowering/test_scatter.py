# SPDX-License-Identifier: Apache-2.0
"""Scatters and histograms give CPU PyTorch's values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torchtpu_core.lowering import scatter
from torchtpu_core.lowering.scatter import TABLE
from torchtpu_core.testing.lowering import check, lower

X = torch.linspace(-2, 2, 12).reshape(3, 4)
SRC = torch.linspace(1, 3, 12).reshape(3, 4)
INDEX = torch.tensor([[0, 2, 0], [1, 1, 0]])
UNIQUE = torch.tensor([[0, 1, 2], [1, 2, 0]])
NAN = SRC.clone().index_fill(1, torch.tensor([0]), float("nan"))
SCALAR = torch.tensor(2.0)
ZERO = torch.tensor(0)

CASES: list[tuple[Any, ...]] = [
    ("scatter.src", X, 0, UNIQUE, SRC),
    ("scatter.src", X, 1, UNIQUE, SRC),
    ("scatter.src", SCALAR, 0, ZERO, SCALAR + 1),
    ("scatter.src", X, 0, torch.zeros(0, 4, dtype=torch.int64), SRC),
    ("scatter.value", X, -1, INDEX, 7.5),
    ("scatter.value", X > 0, 1, INDEX, True),
    ("scatter.reduce", X, 0, INDEX, SRC, {"reduce": "add"}),
    ("scatter.reduce", X, 0, INDEX, SRC, {"reduce": "multiply"}),
    ("scatter.value_reduce", X, 0, INDEX, 3, {"reduce": "multiply"}),
    ("scatter_add", X, 0, INDEX, SRC),
    ("scatter_add", X.bfloat16(), 1, INDEX, SRC.bfloat16()),
    ("scatter_add", SCALAR, 0, ZERO, SCALAR),
    ("scatter_reduce.two", X, 0, INDEX, NAN, "amax"),
    ("scatter_reduce.two", X, 0, INDEX, NAN, "amin"),
]
REDUCES = ("sum", "prod", "mean", "amax", "amin")
for how, own in itertools.product(REDUCES, (True, False)):
    option = {"include_self": own}
    CASES.append(("scatter_reduce.two", X, 1, INDEX, SRC, how, option))
    ints = ((X * 3).int(), 0, INDEX, (SRC * 5).int(), how, option)
    CASES.append(("scatter_reduce.two", *ints))
    if how != "sum":
        rows = torch.tensor([1, 1, 3])
        CASES.append(("index_reduce", X, 1, rows, SRC[:, :3], how, option))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scatter_gives_cpu_values(case: tuple[Any, ...]) -> None:
    keywords = case[-1] if isinstance(case[-1], dict) else {}
    args = case[1:-1] if keywords else case[1:]
    check(f"aten::{case[0]}", *args, table=TABLE, **keywords)


@pytest.mark.parametrize("bad", [5, -1])
def test_scatter_out_of_range_raises_runtime_error(bad: int) -> None:
    row = next(r for r in TABLE if r.overload == "aten::scatter_add")
    with pytest.raises(RuntimeError, match="out of bounds for dimension 0 with size 3"):
        lower(row, (X, 0, torch.tensor([[bad]]), SRC), {})


HISTOGRAMS: list[tuple[Any, ...]] = [
    (X, 5),
    (X, 4, -1, 1.5),
    (torch.ones(3), 3),
    (torch.zeros(0), 3),
    (X.double(), 7, -2, 2),
]


@pytest.mark.parametrize("args", HISTOGRAMS, ids=str)
def test_histc_gives_cpu_counts(args: tuple[Any, ...]) -> None:
    check("aten::histc", *args, table=TABLE)


def test_histc_of_infinite_data_raises() -> None:
    row = next(r for r in TABLE if r.overload == "aten::histc")
    with pytest.raises(RuntimeError, match="not finite"):
        lower(row, (torch.tensor([1.0, float("inf")]),), {})


@pytest.mark.parametrize("minlength", [0, 9])
@pytest.mark.parametrize("weighted", [None, torch.float32, torch.int32])
def test_bincount_gives_cpu_counts(minlength: int, weighted: torch.dtype | None) -> None:
    x = torch.tensor([3, 0, 3, 1])
    weights = None if weighted is None else torch.arange(4).to(weighted)
    actual = scatter._bincount(x, weights, minlength)
    torch.testing.assert_close(actual, torch.bincount(x, weights, minlength))


@pytest.mark.parametrize("x", [torch.tensor([1.0]), torch.tensor([True])])
def test_bincount_of_other_than_integers_raises_cpus_error(x: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError) as expected:
        torch.bincount(x)
    with pytest.raises(NotImplementedError) as raised:
        scatter._bincount(x)
    assert str(raised.value) == str(expected.value)


def test_bincount_of_negative_numbers_raises() -> None:
    with pytest.raises(RuntimeError, match="non-negative"):
        scatter._bincount(torch.tensor([-1]))
