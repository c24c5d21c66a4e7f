# SPDX-License-Identifier: Apache-2.0
"""View ops as functions of a value give CPU PyTorch's views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.lowering.view_ops import TABLE
from torchtpu_core.testing.lowering import check

X = torch.arange(24.0).reshape(2, 3, 4)
SCALAR = torch.tensor(3.5)
COMPLEX = torch.complex(X, X + 1)

CASES: list[tuple[Any, ...]] = [
    ("view", X, [4, -1]),
    ("view", X[:, :0], [0, 7]),
    ("_unsafe_view", X, [6, 4]),
    ("_reshape_alias", X, [6, 4], [4, 1]),
    ("permute", X, [2, 0, -2]),
    ("transpose.int", X, -1, 0),
    ("transpose.int", SCALAR, 0, -1),
    ("t", X[0]),
    ("t", X[0, 0]),
    ("expand", X[:, :1], [5, -1, 3, -1]),
    ("expand", SCALAR, [2, 0]),
    ("slice.Tensor", X, 2, 1, 100, 2),
    ("slice.Tensor", X, -2, -2, None),
    ("slice.Tensor", X, 0, 5, 1),
    ("select.int", X, -1, -3),
    ("unsqueeze", X, -1),
    ("unsqueeze", SCALAR, 0),
    ("squeeze", X[:, :1, :1]),
    ("squeeze.dim", X[:, :1], 1),
    ("squeeze.dim", SCALAR, 0),
    ("squeeze.dims", X[:1, :, :1], [0, 1, -1]),
    ("as_strided", X, [3, 2], [1, 12], 2),
    ("as_strided", X, [2, 3, 5], [4, 4, 0], 0),
    ("as_strided", X, [4, 3], [2, 3], 1),
    ("as_strided", X, [0, 3], [2, 3], 1),
    ("split.Tensor", X, 3, -1),
    ("split_with_sizes", X, [1, 0, 3], 2),
    ("unbind.int", X, 1),
    ("diagonal", X, 1, -1, 0),
    ("diagonal", X, -1, 1, 2),
    ("diagonal", X, 9, 0, 1),
    ("unfold", X, -1, 3, 1),
    ("unfold", X, 0, 1, 2),
    ("unfold", SCALAR, 0, 1, 1),
    ("view_as_real", COMPLEX),
    ("view_as_complex", X.reshape(2, 6, 2)),
    ("_conj", COMPLEX),
    ("_neg_view", X),
    ("alias", X),
    ("detach_copy", X),
    ("view.dtype", X, torch.int32),
    ("view.dtype", X, torch.int16),
    ("view.dtype", X, torch.float64),
    ("view.dtype", X, torch.complex64),
    ("view.dtype", COMPLEX, torch.int64),
    ("view.dtype", COMPLEX, torch.float32),
    ("view.dtype", X > 3, torch.uint8),
    ("view.dtype", SCALAR, torch.int32),
    ("narrow_copy", X, 1, -2, 2),
    ("unsafe_split.Tensor", X, 2, 2),
    ("slice_copy.Tensor", X, 1, 1),
    ("permute_copy", X, [1, 0, 2]),
    ("unbind_copy.int", X, 0),
]


@pytest.mark.parametrize(("name", "args"), [(c[0], c[1:]) for c in CASES])
def test_view_gives_cpu_values(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", *args, table=TABLE)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_as_strided_any_geometry_gives_cpu_values(data: st.DataObject) -> None:
    size = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    stride = data.draw(st.lists(st.integers(0, 4), min_size=len(size), max_size=len(size)))
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    offset = data.draw(st.integers(0, 3))
    base = torch.arange(reach + offset + 1)
    check("aten::as_strided", base, size, stride, offset, table=TABLE)
