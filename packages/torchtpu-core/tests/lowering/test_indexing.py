# SPDX-License-Identifier: Apache-2.0
"""Indexing ops give CPU PyTorch's values, and refuse what CPU PyTorch refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering import indexing, masks
from torchtpu_core.testing.lowering import check, lower

TABLE = (*indexing.TABLE, *masks.TABLE)
X = torch.arange(24.0).reshape(2, 3, 4)
WHOLE = torch.arange(12).reshape(3, 4)
HALF = torch.linspace(-1, 1, 12).reshape(3, 4).bfloat16()
SCALAR = torch.tensor(3.5)
PAIR = torch.tensor([1, -1])
GRID = torch.tensor([[0], [-2]])
NONE = torch.zeros(0, dtype=torch.int64)
MASK = X[0] % 3 == 0
ROWS = torch.tensor([True, False, True])
IN_ROW = torch.tensor([[0, 2], [1, 0]])

CASES: list[tuple[Any, ...]] = [
    ("index.Tensor", X, [PAIR]),
    ("index.Tensor", X, [None, PAIR.int()]),
    ("index.Tensor", X, [None, GRID, PAIR]),
    ("index.Tensor", X, [PAIR, None, GRID]),
    ("index.Tensor", X, [torch.tensor(1), None, PAIR]),
    ("index.Tensor", X, [NONE]),
    ("index.Tensor", X[:0], [NONE]),
    ("index.Tensor", X > 4, [PAIR, GRID]),
    ("_unsafe_index.Tensor", X, [GRID, PAIR]),
    ("index_put", X, [PAIR], torch.zeros(2, 3, 4)),
    ("index_put", X, [None, PAIR], SCALAR),
    ("index_put", X, [None, torch.tensor([[-1]])], torch.ones(2, 1, 1, 4)),
    ("index_put", X, [torch.tensor(1), None, torch.tensor([2])], torch.ones(3)),
    ("index_put", X, [PAIR, None, GRID], torch.zeros(3)),
    ("index_put", X, [None, torch.tensor([1, 1, 0])], torch.ones(3, 4), True),
    ("index_put", HALF, [torch.tensor([0, 0])], torch.ones(2, 4).bfloat16(), True),
    ("index_put", MASK, [torch.tensor([0, 0])], ~MASK[:2], True),
    ("index_put", X[0], [MASK], SCALAR),
    ("index_put", X[0], [MASK], torch.arange(4.0)),
    ("index_put", X[0], [MASK], torch.arange(4.0), True),
    ("index_put", X, [None, ROWS], torch.arange(4.0)),
    ("index_put", X, [None, ROWS], torch.arange(16.0).reshape(2, 2, 4)),
    ("index_put", X, [None, ROWS], torch.arange(2.0).reshape(2, 1), True),
    ("index_put", X, [None, ROWS & False], torch.zeros(2, 0, 4)),
    ("_unsafe_index_put", X, [PAIR, GRID], torch.zeros(4)),
    ("_index_put_impl", X, [torch.tensor([1, 1])], torch.ones(3, 4), True),
    ("_unsafe_masked_index", WHOLE, ROWS[:, None], [GRID[[0, 1, 0]], None], 7),
    (
        "_unsafe_masked_index_put_accumulate",
        X[0],
        ROWS[:2],
        [torch.tensor([0, 9]), torch.tensor([1, 1])],
        torch.ones(2),
    ),
    ("index_select", X, 1, torch.tensor([2, 0, 2])),
    ("index_select", X, -1, NONE),
    ("index_select", SCALAR, 0, torch.tensor([0])),
    ("index_add", X, 1, torch.tensor([2, 2]), torch.ones(2, 2, 4)),
    ("index_add", WHOLE, 0, torch.tensor([1]), WHOLE[:1], {"alpha": 3}),
    ("index_add", HALF, 1, torch.tensor([0, 0, 3, 1]), HALF, {"alpha": 0.5}),
    ("index_copy", X, -1, torch.tensor([3, 0]), torch.zeros(2, 3, 2)),
    ("index_fill.int_Scalar", WHOLE, 1, torch.tensor([-1, 0]), 9),
    ("index_fill.int_Tensor", X, 0, torch.tensor([1]), SCALAR),
    ("gather", X[0], 1, IN_ROW),
    ("gather", X[0], 0, IN_ROW),
    ("gather", SCALAR, 0, torch.tensor(0)),
    ("gather", X[0], 1, NONE.reshape(0, 3)),
    ("take", X, torch.tensor([[-1, 5]])),
    ("put", X, torch.tensor([3, -1]), torch.tensor([9.0, 8.0])),
    ("put", X, torch.tensor([3, 3]), torch.tensor([9.0, 8.0]), True),
    ("masked_fill.Scalar", X, MASK, float("-inf")),
    ("masked_fill.Scalar", WHOLE[:1], MASK, 5),
    ("masked_fill.Tensor", HALF, MASK, SCALAR),
    ("masked_scatter", X, MASK, torch.arange(30.0)),
    ("masked_scatter_backward", X[0], MASK, [6]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_indexing_gives_cpu_values(case: tuple[Any, ...]) -> None:
    keywords = case[-1] if isinstance(case[-1], dict) else {}
    args = case[1:-1] if keywords else case[1:]
    check(f"aten::{case[0]}", *args, table=TABLE, **keywords)


BAD = torch.tensor([5])
BAD_CASES: list[tuple[Any, ...]] = [
    ("index.Tensor", X, [BAD]),
    ("index.Tensor", X[:0], [BAD]),
    ("index_put", X, [None, torch.tensor([-4])], SCALAR),
    ("index_put", X[0], [MASK], torch.arange(3.0)),
    ("index_put", X[0], [ROWS[:2]], SCALAR),
    ("index_select", X, 0, BAD),
    ("index_select", X, 0, torch.tensor([-1])),
    ("index_add", X, 0, BAD, X[:1]),
    ("index_copy", X, 0, torch.tensor([-1]), X[:1]),
    ("index_fill.int_Scalar", X, 0, BAD, 1),
    ("gather", X, 0, BAD.reshape(1, 1, 1)),
    ("take", X, torch.tensor([24])),
    ("put", X, torch.tensor([-25]), torch.ones(1)),
    ("masked_scatter", X, X >= 0, torch.ones(3)),
]


@pytest.mark.parametrize("case", BAD_CASES, ids=lambda c: c[0])
def test_indexing_out_of_range_raises_as_on_cpu(case: tuple[Any, ...]) -> None:
    name, *args = case
    packet, _, variant = name.partition(".")
    with pytest.raises((IndexError, RuntimeError)) as on_cpu:
        getattr(getattr(torch.ops.aten, packet), variant or "default")(*args)
    row = next(r for r in TABLE if r.overload == f"aten::{name}")
    with pytest.raises(on_cpu.type):
        lower(row, args, {})


def test_masks_in_a_read_need_expansion_and_match_cpu() -> None:
    indices = [None, ROWS]
    assert masks.needs_mask_expansion("aten::index.Tensor", indices)
    check("aten::index.Tensor", X, masks.expand_masks(indices), table=TABLE)
    torch.testing.assert_close(X[tuple(masks.expand_masks([MASK[:2, :3]]))], X[MASK[:2, :3]])


def test_one_mask_in_a_write_needs_no_expansion() -> None:
    assert not masks.needs_mask_expansion("aten::index_put", [None, ROWS])
    assert masks.needs_mask_expansion("aten::index_put", [PAIR[:1], ROWS])
    assert not masks.needs_mask_expansion("aten::index_put", [PAIR, None])
