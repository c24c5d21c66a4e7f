# SPDX-License-Identifier: Apache-2.0
"""Rearranging and embedding ops give CPU PyTorch's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering import shape
from torchtpu_core.lowering.shape import TABLE
from torchtpu_core.testing.lowering import check

X = torch.arange(24.0).reshape(2, 3, 4)
WHOLE = torch.arange(6).reshape(2, 3)
SCALAR = torch.tensor(3.5)
EMPTY = torch.zeros(0)
HALF = torch.linspace(-1, 1, 24).reshape(2, 3, 4).bfloat16()

CASES: list[tuple[Any, ...]] = [
    ("cat", [X, X + 1], -1),
    ("cat", [EMPTY, X, EMPTY], 1),
    ("cat", [EMPTY, EMPTY], 0),
    ("cat", [WHOLE, X[0, :2, :3], WHOLE > 2], 0),
    ("cat", [HALF, X], 0),
    ("stack", [X, X], -1),
    ("stack", [SCALAR, SCALAR], 0),
    ("_chunk_cat", [X, X[:, :2]], 1, 2),
    ("flip", X, [0, -1]),
    ("flip", SCALAR, []),
    ("roll", X, [5], []),
    ("roll", X, [-1, 2], [0, 2]),
    ("roll", EMPTY, [1], [0]),
    ("repeat", X, [2, 1, 3, 2]),
    ("repeat", SCALAR, [3]),
    ("repeat", X, [1, 0, 1]),
    *[("rot90", X, k, [0, 2]) for k in (-1, 0, 1, 2)],
    ("tril", X, 1),
    ("triu", X, -1),
    ("triu", WHOLE > 1, 0),
    ("tril", X, 99),
    ("diag_embed", X, 0, -2, -1),
    ("diag_embed", X, 1, 0, -2),
    ("diag_embed", X, -2, -1, 1),
    ("diagonal_backward", torch.ones(4, 2), [2, 3, 4], 1, 0, 1),
    ("diagonal_scatter", X, torch.full((4, 2), 9.0), -1, 1, 0),
    ("diagonal_scatter", X, torch.full((3, 2), 9.0), -1, -1, 0),
    ("trace", WHOLE),
    ("trace", X[0]),
    ("slice_backward", torch.ones(2, 2, 4), [2, 5, 4], 1, 1, 4, 2),
    ("slice_backward", torch.ones(2, 0, 4), [2, 5, 4], 1, 9, 4, 2),
    ("select_backward", torch.ones(2, 4), [2, 3, 4], 1, -1),
    ("slice_scatter", X, torch.full((2, 2, 4), 9.0), 1, 0, 3, 2),
    ("slice_scatter", X, torch.full((2, 2, 4), 9.0), 1, -2, None, 1),
    ("select_scatter", X, torch.full((2, 4), 9.0), 1, -2),
    ("as_strided_scatter", X, torch.full((2, 2), 9.0), [2, 2], [12, 3], 1),
    ("unfold_backward", torch.ones(2, 3, 2, 3), [2, 3, 4], 2, 3, 1),
    ("unfold_backward", torch.ones(2, 3, 2, 2), [2, 3, 5], 2, 2, 3),
    ("unfold_backward", torch.ones(1, 2, 2), [3, 4], 1, 2, 2),
    ("block_diag", [X[0], SCALAR, X[0, 0], torch.zeros(1, 0)]),
    ("linalg_cross", torch.randn(2, 3), torch.randn(1, 3)),
]
CASES.append(("linalg_cross", torch.randint(9, (3, 2)), torch.randint(9, (3, 2)), {"dim": 0}))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_shape_op_gives_cpu_values(case: tuple[Any, ...]) -> None:
    keywords = case[-1] if isinstance(case[-1], dict) else {}
    args = case[1:-1] if keywords else case[1:]
    check(f"aten::{case[0]}", *args, table=TABLE, **keywords)


@pytest.mark.parametrize("repeats", [[2, 0, 3], [0], [1, 1]])
def test_repeat_interleave_of_counts_gives_cpu_positions(repeats: list[int]) -> None:
    counts = torch.tensor(repeats)
    torch.testing.assert_close(shape._repeat_interleave(counts), torch.repeat_interleave(counts))


@pytest.mark.parametrize("batch_first", [False, True])
def test_pack_padded_sequence_gives_cpu_data(batch_first: bool) -> None:
    x = torch.randn(3, 4, 2) if batch_first else torch.randn(4, 3, 2)
    lengths = torch.tensor([4, 2, 1])
    expected = torch.ops.aten._pack_padded_sequence(x, lengths, batch_first)
    actual = shape._pack_padded_sequence(x, lengths, batch_first)
    torch.testing.assert_close(actual, tuple(expected))


@pytest.mark.parametrize("counts", [torch.ones(4), torch.ones(2, 2, dtype=torch.int64)])
def test_repeat_interleave_of_other_than_a_list_of_counts_raises_as_cpu(counts) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.repeat_interleave(counts)
    with pytest.raises(type(expected.value)) as raised:
        torch.repeat_interleave(counts.to("tpu"))
    assert str(raised.value) == str(expected.value)
