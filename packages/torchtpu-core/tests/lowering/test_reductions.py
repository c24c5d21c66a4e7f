# SPDX-License-Identifier: Apache-2.0
"""Reductions, norms, order statistics and scans against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering import extrema, norms, order_statistics, reductions, scans
from torchtpu_core.testing.lowering import check, lower

MODULES = (reductions, extrema, norms, order_statistics, scans)
TABLE = tuple(row for module in MODULES for row in module.TABLE)

INF, NAN = float("inf"), float("nan")
X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
WHOLE = (X * 3).to(torch.int64)
BYTES = WHOLE.abs().to(torch.uint8)
BOOLS = X > 0.3
COMPLEX = torch.complex(X, X.flip(0))
HOLES = torch.tensor([[1.0, NAN, 3.0, -INF], [INF, 0.0, 0.0, 2.0], [NAN, NAN, 1.0, 5.0]])
INPUTS = {"float": X, "int": WHOLE, "uint8": BYTES, "bool": BOOLS, "complex": COMPLEX}
DIMS = [None, [], [0], [-1], [0, 2], [2, 0, 1]]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_sum_equals_cpu(kind: str, dim: list[int] | None) -> None:
    check("aten::sum.dim_IntList", INPUTS[kind], dim, table=TABLE)
    check("aten::sum.dim_IntList", INPUTS[kind], dim, True, table=TABLE)


@pytest.mark.parametrize("kind", ["float", "complex"])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_mean_equals_cpu(kind: str, dim: list[int] | None) -> None:
    check("aten::mean.dim", INPUTS[kind], dim, True, table=TABLE)


@pytest.mark.parametrize("kind", INPUTS)
def test_full_reductions_equal_cpu(kind: str) -> None:
    check("aten::sum", INPUTS[kind], table=TABLE)
    check("aten::prod", INPUTS[kind], table=TABLE)
    check("aten::all", INPUTS[kind], table=TABLE)
    check("aten::any", INPUTS[kind], table=TABLE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float32, torch.bfloat16])
def test_dtype_argument_converts_before_the_sum(dtype: torch.dtype) -> None:
    check("aten::sum", X * 10, dtype=dtype, table=TABLE)
    check("aten::prod.dim_int", WHOLE, 1, False, dtype=dtype, table=TABLE)
    check("aten::cumsum", WHOLE, 1, dtype=dtype, table=TABLE)


def test_bfloat16_sum_accumulates_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16)
    row = next(r for r in TABLE if r.overload == "aten::sum")
    assert lower(row, (ones,), {}).item() == 4096  # bfloat16 itself would stop at 256


def test_nansum_skips_nan() -> None:
    finite = HOLES.nan_to_num(nan=NAN, posinf=9.0, neginf=-9.0)
    check("aten::nansum", finite, [1], table=TABLE)


EXTREMES = ["amax", "amin"]


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("x", [X, WHOLE, BOOLS, HOLES], ids=["float", "int", "bool", "nan"])
@pytest.mark.parametrize("dim", [[], [0], [0, -1]], ids=str)
def test_amax_amin_equal_cpu(name: str, x: torch.Tensor, dim: list[int]) -> None:
    check(f"aten::{name}", x, dim, True, table=TABLE)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("x", [X, WHOLE, BOOLS, HOLES], ids=["float", "int", "bool", "nan"])
def test_max_min_values_and_indices_equal_cpu(name: str, x: torch.Tensor) -> None:
    check(f"aten::{name}", x, table=TABLE)
    for dim in (0, -1):
        check(f"aten::{name}.dim", x, dim, dim == 0, table=TABLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
def test_extremes_of_many_values_are_nan_where_one_is(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(256, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[::3, ::7] = NAN
    check(f"aten::{name}", x, 0, table=TABLE)
    check(f"aten::{name}", x, 1, table=TABLE)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("x", [X, WHOLE, HOLES, X.bfloat16()])
@pytest.mark.parametrize("dim", [None, 0, -1])
def test_argmax_argmin_equal_cpu(name: str, x: torch.Tensor, dim: int | None) -> None:
    check(f"aten::{name}", x, dim, table=TABLE)
    check(f"aten::{name}", x, dim, True, table=TABLE)


def test_aminmax_equals_cpu() -> None:
    check("aten::aminmax", HOLES, table=TABLE)
    check("aten::aminmax", X, dim=1, keepdim=True, table=TABLE)


@pytest.mark.parametrize("name", ["all", "any"])
@pytest.mark.parametrize("kind", INPUTS)
def test_all_any_along_dimensions_equal_cpu(name: str, kind: str) -> None:
    check(f"aten::{name}.dim", INPUTS[kind], 1, True, table=TABLE)
    check(f"aten::{name}.dims", INPUTS[kind], [0, 2], table=TABLE)
    check(f"aten::{name}.dims", INPUTS[kind], [], table=TABLE)


def test_count_nonzero_equals_cpu() -> None:
    check("aten::count_nonzero.dim_IntList", BYTES, [0, 1], table=TABLE)
    check("aten::count_nonzero", HOLES, table=TABLE)


SPREADS = ["var", "std", "var_mean", "std_mean"]


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("x", [X, X.bfloat16(), COMPLEX], ids=["float", "bfloat16", "complex"])
@pytest.mark.parametrize("correction", [None, 0, 2])
def test_variance_equals_cpu(name: str, x: torch.Tensor, correction: int | None) -> None:
    overload = f"aten::{name}.correction"
    check(overload, x, [0, 2], correction=correction, keepdim=True, table=TABLE)
    check(overload, x, None, correction=correction, table=TABLE)


@pytest.mark.parametrize("correction", [1, 2])
def test_variance_without_freedom_equals_cpu(correction: int) -> None:
    check("aten::var.correction", torch.ones(1), [0], correction=correction, table=TABLE)


@pytest.mark.parametrize("correction", [-1, 0, 1])
def test_variance_of_no_elements_equals_cpu(correction: int) -> None:
    empty = torch.ones(0, 3)
    check("aten::var_mean.correction", empty, [0], correction=correction, table=TABLE)


@pytest.mark.parametrize("x", [X, COMPLEX, WHOLE, torch.full((2, 2), -INF)])
@pytest.mark.parametrize("dim", [[0], [0, -1]])
def test_logsumexp_equals_cpu(x: torch.Tensor, dim: list[int]) -> None:
    check("aten::logsumexp", x, dim, True, table=TABLE)


def test_logsumexp_of_bfloat16_is_rounded_once() -> None:
    # CPU PyTorch rounds every step, so the oracle is its own float32 result.
    row = next(r for r in TABLE if r.overload == "aten::logsumexp")
    x = X.bfloat16()
    assert torch.equal(lower(row, (x, [0]), {}), x.float().logsumexp(0).bfloat16())


def test_logsumexp_of_nothing_is_minus_infinity() -> None:
    check("aten::logsumexp", torch.empty(0, 3), [0], table=TABLE)


ORDERS = [0, 1, 2, 3, 0.5, -1, -2, INF, -INF]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("x", [X, X.bfloat16(), COMPLEX], ids=["float", "bfloat16", "complex"])
def test_vector_norm_equals_cpu(order: float, x: torch.Tensor) -> None:
    check("aten::linalg_vector_norm", x, order, [0, 1], table=TABLE)
    check("aten::linalg_vector_norm", x, order, None, True, table=TABLE)


@pytest.mark.parametrize("order", [0, 1, 2, 3.0])
def test_vector_norm_of_nothing_is_zero(order: float) -> None:
    check("aten::linalg_vector_norm", torch.empty(2, 0), order, [1], table=TABLE)


def test_older_norms_equal_cpu() -> None:
    check("aten::norm.Scalar", X, table=TABLE)
    check("aten::norm.ScalarOpt_dim", X, 3, [1], True, table=TABLE)
    check("aten::norm.ScalarOpt_dim", X, None, [1], table=TABLE)
    check("aten::norm.ScalarOpt_dim_dtype", X, 2, [1], False, dtype=torch.float64, table=TABLE)
    check("aten::dist", X, X[:1] + 1, 3, table=TABLE)


DISTINCT = torch.randperm(60, generator=torch.Generator().manual_seed(1)).reshape(3, 4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("dim", [0, -1])
def test_ranks_of_distinct_values_equal_cpu(dtype: torch.dtype, dim: int) -> None:
    x = (DISTINCT - (0 if dtype == torch.uint8 else 30)).to(dtype)
    check("aten::median", x, table=TABLE)
    check("aten::median.dim", x, dim, True, table=TABLE)
    check("aten::kthvalue", x, 2, dim, table=TABLE)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_treat_nan_as_cpu(name: str) -> None:
    check(f"aten::{name}", HOLES, table=TABLE)
    check(f"aten::{name}.dim", HOLES, 0, table=TABLE)


def test_rank_index_points_to_the_value() -> None:
    row = next(r for r in TABLE if r.overload == "aten::kthvalue")
    value, index = lower(row, (WHOLE, 2, 1), {})
    assert torch.equal(value, WHOLE.kthvalue(2, 1).values)
    assert torch.equal(WHOLE.gather(1, index.unsqueeze(1)).squeeze(1), value)


def test_mode_value_equals_cpu_and_index_points_to_it() -> None:
    row = next(r for r in TABLE if r.overload == "aten::mode")
    value, index = lower(row, (WHOLE, 0), {})
    assert torch.equal(value, WHOLE.mode(0).values)
    assert torch.equal(WHOLE.gather(0, index.unsqueeze(0)).squeeze(0), value)


def test_mode_counts_zeros_of_both_signs_together() -> None:
    row = next(r for r in TABLE if r.overload == "aten::mode")
    zeros = torch.tensor([-0.0, 1.0, 0.0, 1.0, -0.0, 0.0, 1.0])
    value, index = lower(row, (zeros, 0), {})
    assert torch.equal(value, zeros.mode().values)
    assert zeros[index] == value


SCANS = ["cumsum", "cumprod"]


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dim", [0, -1])
def test_cumulative_equals_cpu(name: str, kind: str, dim: int) -> None:
    check(f"aten::{name}", INPUTS[kind], dim, table=TABLE)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("x", [X, WHOLE, BOOLS, HOLES], ids=["float", "int", "bool", "nan"])
@pytest.mark.parametrize("dim", [0, 1])
def test_cumulative_extremes_equal_cpu(name: str, x: torch.Tensor, dim: int) -> None:
    check(f"aten::{name}", x, dim, table=TABLE)


EQUAL = torch.full((4,), 1e4, dtype=torch.complex64)


@pytest.mark.parametrize("x", [X, X.bfloat16(), torch.tensor([-INF, -INF, 1.0, INF]), EQUAL])
def test_logcumsumexp_equals_cpu(x: torch.Tensor) -> None:
    check("aten::logcumsumexp", x, 0, table=TABLE)


ZERO_DIM: list[tuple[str, tuple[Any, ...]]] = [
    ("sum.dim_IntList", ([0],)),
    ("mean.dim", ([-1],)),
    ("prod.dim_int", (0,)),
    ("max.dim", (0,)),
    ("argmin", (0,)),
    ("cumsum", (0,)),
    ("cummax", (-1,)),
    ("median.dim", (0,)),
    ("kthvalue", (1,)),
    ("mode", ()),
    ("logsumexp", ([0],)),
    ("all.dim", (0,)),
]


@pytest.mark.parametrize(("name", "args"), ZERO_DIM)
def test_zero_dimensional_tensor_has_dimension_zero(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", torch.tensor(2.5), *args, table=TABLE)


EMPTY = torch.empty(0, 3)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "any", "all", "median", "count_nonzero"])
def test_reductions_of_nothing_equal_cpu(name: str) -> None:
    check(f"aten::{name}", EMPTY, table=TABLE)


def test_hash_equals_cpu() -> None:
    check("aten::hash_tensor", X, [1], table=TABLE)
    check("aten::hash_tensor", WHOLE, table=TABLE)
