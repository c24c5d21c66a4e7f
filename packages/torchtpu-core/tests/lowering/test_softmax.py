# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm against CPU PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering.softmax import TABLE
from torchtpu_core.testing.lowering import assert_close, check, lower

_GENERATOR = torch.Generator().manual_seed(0)
INF = float("inf")
PLAIN = ["aten::_softmax", "aten::_log_softmax"]
SPECIAL = torch.tensor(
    [
        [0.0, -INF, 1.0],
        [-INF, -INF, -INF],
        [INF, 0.0, 1.0],
        [float("nan"), 0.0, 1.0],
        [1e4, 0, -1e4],
    ]
)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


@pytest.mark.parametrize("overload", PLAIN)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_equals_cpu(overload: str, dim: int) -> None:
    check(overload, 3 * rand(2, 3, 4), dim, False, table=TABLE)


@pytest.mark.parametrize("overload", PLAIN)
@pytest.mark.parametrize("x", [SPECIAL, torch.tensor(2.0), torch.empty(0, 3), torch.empty(2, 0)])
def test_softmax_of_special_values_equals_cpu(overload: str, x: Tensor) -> None:
    check(overload, x, -1, False, table=TABLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_softmax_in_other_dtypes_equals_cpu(dtype: torch.dtype) -> None:
    check("aten::_softmax", rand(3, 8, dtype=dtype), 1, False, table=TABLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_log_softmax_of_16_bit_floats_rounds_once(dtype: torch.dtype) -> None:
    x = rand(3, 8, dtype=dtype)
    row = next(r for r in TABLE if r.overload == "aten::_log_softmax")
    assert_close(lower(row, (x, 1, False), {}), torch.log_softmax(x.double(), 1).to(dtype))


@pytest.mark.parametrize("overload", PLAIN)
@pytest.mark.parametrize("shape", [(3, 4), ()])
def test_softmax_backward_equals_cpu(overload: str, shape: tuple[int, ...]) -> None:
    out = getattr(torch, overload.removeprefix("aten::"))(rand(*shape), -1, False)
    check(f"{overload}_backward_data", rand(*shape), out, -1, torch.float32, table=TABLE)


def test_safe_softmax_of_a_hidden_row_is_zero() -> None:
    check("aten::_safe_softmax", SPECIAL[:2], -1, table=TABLE)
    check("aten::_safe_softmax", rand(2, 3, dtype=torch.bfloat16), 0, torch.float32, table=TABLE)


MASKS = {None: (2, 2, 3, 3), 0: (3, 3), 1: (2, 3), 2: (2, 2, 3, 3)}


@pytest.mark.parametrize("mask_type", MASKS)
def test_masked_softmax_equals_cpu(mask_type: int | None) -> None:
    mask = torch.rand(MASKS[mask_type], generator=_GENERATOR) > 0.5
    mask[..., 0] = False
    check("aten::_masked_softmax", rand(2, 2, 3, 3), mask, 3, mask_type, table=TABLE)


def test_masked_softmax_backward_equals_cpu() -> None:
    mask = torch.rand(2, 3, 4, generator=_GENERATOR) > 0.5
    mask[..., 0] = False
    out = torch._masked_softmax(rand(2, 3, 4), mask, 2, None)
    arguments = (rand(2, 3, 4), out, mask, 2)
    check("aten::_masked_softmax_backward", *arguments, table=TABLE)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((2, 8, 1030), True), ((2, 8, 1024), False), ((2, 7, 1030), False), ((2, 8, 900), False)],
    ids=str,
)
@pytest.mark.parametrize("overload", PLAIN)
def test_many_classes_that_do_not_fill_lanes_are_computed_in_rows(
    overload: str, shape: tuple[int, ...], rows: bool
) -> None:
    x = rand(*shape)
    check(overload, x, -1, False, table=TABLE)
    out = getattr(torch, overload.removeprefix("aten::"))(x, -1, False)
    check(f"{overload}_backward_data", rand(*shape), out, -1, torch.float32, table=TABLE)
    row = next(r for r in TABLE if r.overload == overload)
    graph = jax.make_jaxpr(lambda one: row.function(one, -1, False))(jnp.zeros(shape))
    exponential = next(e for e in graph.eqns if e.primitive.name == "exp")
    assert (len(exponential.outvars[0].aval.shape) == 2) == rows
