# SPDX-License-Identifier: Apache-2.0
"""Unary math, arithmetic, comparisons, bits and copies against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torchtpu_core.lowering import (
    arithmetic,
    bitwise,
    comparison,
    copies,
    division,
    random,
    unary,
)
from torchtpu_core.testing.lowering import check, lower, to_cpu

MODULES = (unary, arithmetic, division, comparison, bitwise, copies)
TABLE = tuple(row for module in MODULES for row in module.TABLE)

INF, NAN = float("inf"), float("nan")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.7, -40.0, INF, -INF, NAN])
WHOLE = torch.tensor([0, 1, -1, 2, -3, 7, 100, -128], dtype=torch.int64)
DIVISORS = torch.tensor([3, -3, 1, 5, 2, -7, 9, -1], dtype=torch.int64)
BOOLS = torch.tensor([True, False])
COMPLEX = torch.complex(torch.tensor([0.0, 1.0, -2.0, 0.3]), torch.tensor([0.0, -1.0, 0.5, 2.0]))
RANDOM = torch.randn(64, generator=torch.Generator().manual_seed(0))
ROW, COLUMN = RANDOM[:4].reshape(1, 4), RANDOM[4:7].reshape(3, 1)
EMPTY = torch.empty(0, 3)
SCALAR = torch.tensor(2.5)

NO_ARGUMENT = [
    row.overload
    for row in unary.TABLE
    if row.overload not in ("aten::round.decimals", "aten::_conj_physical")
]
REAL_ONLY = {
    "aten::ceil", "aten::floor", "aten::round", "aten::trunc", "aten::frac", "aten::sign",
    "aten::deg2rad", "aten::rad2deg", "aten::signbit", "aten::isposinf", "aten::isneginf",
    "aten::frexp.Tensor", "aten::nan_to_num",
}  # fmt: skip
NO_INTEGERS = {"aten::frac", "aten::frexp.Tensor"}


@pytest.mark.parametrize("overload", NO_ARGUMENT)
def test_unary_float_edges_equal_cpu(overload: str) -> None:
    x = EDGES[:10] if overload == "aten::frexp.Tensor" else EDGES
    check(overload, x, table=TABLE)


@pytest.mark.parametrize("overload", NO_ARGUMENT)
def test_unary_bfloat16_equals_cpu(overload: str) -> None:
    if overload == "aten::angle":
        pytest.skip("CPU PyTorch has no bfloat16 angle")
    check(overload, RANDOM[:6].abs().reshape(3, 2).clamp(0.1, 0.9).bfloat16(), table=TABLE)


@pytest.mark.parametrize("overload", [o for o in NO_ARGUMENT if o not in NO_INTEGERS])
def test_unary_integers_equal_cpu(overload: str) -> None:
    check(overload, WHOLE, table=TABLE)


@pytest.mark.parametrize("overload", [o for o in NO_ARGUMENT if o not in REAL_ONLY])
def test_unary_complex_equals_cpu(overload: str) -> None:
    check(overload, COMPLEX[1:], table=TABLE)


ARITHMETIC = ["add", "sub", "mul", "div", "remainder", "fmod", "rsub"]
PAIRS = {
    "broadcast": (ROW, COLUMN),
    "0-d": (ROW, SCALAR),
    "empty": (EMPTY, ROW[:, :3]),
    "number": (ROW, 2.5),
    "int and float number": (WHOLE, 2.5),
    "int and int number": (WHOLE, 3),
    "bfloat16": (RANDOM.bfloat16(), RANDOM.flip(0).abs().bfloat16() + 0.5),
    "bfloat16 and number": (RANDOM.bfloat16(), 0.3),
    "int and 0-d float": (WHOLE, SCALAR),
    "uint8 and int8": (WHOLE.to(torch.uint8), DIVISORS.to(torch.int8)),
    "edges": (EDGES, EDGES.flip(0)),
    "integers": (WHOLE, DIVISORS),
}


# Only the schemas of these take a Python number for a tensor.
WRAPPING = ("add", "sub", "mul", "div")
TENSOR_CASES = [
    (name, pair)
    for name in ARITHMETIC
    for pair, (_, other) in PAIRS.items()
    if name in WRAPPING or isinstance(other, torch.Tensor)
]


@pytest.mark.parametrize(("name", "pair"), TENSOR_CASES)
def test_arithmetic_tensor_equals_cpu(name: str, pair: str) -> None:
    check(f"aten::{name}.Tensor", *PAIRS[pair], table=TABLE)


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize(("x", "number"), [(ROW, 0.7), (WHOLE, 3), (WHOLE, 0.5), (BOOLS, 2)])
def test_arithmetic_scalar_equals_cpu(name: str, x: torch.Tensor, number: float) -> None:
    if "sub" in name and x.dtype == torch.bool:
        pytest.skip("PyTorch does not subtract bools")
    check(f"aten::{name}.Scalar", x, number, table=TABLE)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
# 64 elements: CPU PyTorch rounds `alpha * other` to bfloat16 in its scalar loop, which a
# few elements take, but not in its vectorised one.
@pytest.mark.parametrize("x", [ROW, WHOLE, RANDOM.bfloat16()], ids=["float", "int", "bfloat16"])
def test_alpha_scales_the_second_operand(name: str, x: torch.Tensor) -> None:
    check(f"aten::{name}.Tensor", x, x + 1, alpha=3, table=TABLE)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("pair", ["edges", "integers", "int and float number", "bfloat16"])
def test_division_modes_equal_cpu(mode: str | None, pair: str) -> None:
    check("aten::div.Tensor_mode", *PAIRS[pair], rounding_mode=mode, table=TABLE)


@pytest.mark.parametrize("pair", ["edges", "integers", "uint8 and int8", "number"])
def test_floor_divide_equals_cpu(pair: str) -> None:
    check("aten::floor_divide", *PAIRS[pair], table=TABLE)


@pytest.mark.parametrize(
    ("overload", "options"),
    [
        ("aten::remainder.Tensor", {}),
        ("aten::fmod.Tensor", {}),
        ("aten::floor_divide", {}),
        ("aten::div.Tensor_mode", {"rounding_mode": "trunc"}),
    ],
)
def test_integer_division_by_zero_raises_as_on_cpu(overload: str, options: dict[str, Any]) -> None:
    row = next(r for r in TABLE if r.overload == overload)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        lower(row, (WHOLE, WHOLE), options)


EXPONENTS = (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 2.5, 1.0, 2.0)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_pow_number_exponent_equals_cpu(exponent: float) -> None:
    check("aten::pow.Tensor_Scalar", EDGES, exponent, table=TABLE)


@pytest.mark.parametrize("exponent", [0, 2, 5, 0.5])
@pytest.mark.parametrize("x", [WHOLE, WHOLE.to(torch.uint8), COMPLEX[1:]])
def test_pow_number_exponent_other_dtypes_equal_cpu(x: torch.Tensor, exponent: float) -> None:
    check("aten::pow.Tensor_Scalar", x, exponent, table=TABLE)


def test_pow_integer_tensors_equal_cpu() -> None:
    check("aten::pow.Tensor_Tensor", WHOLE, DIVISORS, table=TABLE)
    check("aten::pow.Scalar", 3, DIVISORS.abs(), table=TABLE)
    check("aten::pow.Scalar", 0.9, torch.tensor([1.0, 2.0, 1000.0]), table=TABLE)


BINARY = [
    ("atan2", (EDGES, EDGES.flip(0))),
    ("atan2", (WHOLE, DIVISORS)),
    ("hypot", (EDGES[:-1], EDGES[:-1].flip(0))),
    ("copysign.Tensor", (EDGES[:-1], EDGES[:-1].flip(0))),
    ("copysign.Scalar", (WHOLE, -2.0)),
    ("xlogy.Tensor", (EDGES, EDGES.abs().flip(0))),
    ("xlogy.Scalar_Self", (0, EDGES)),
    ("special_xlog1py", (EDGES, EDGES.abs().flip(0))),
    ("logaddexp", (EDGES[:-1], EDGES[:-1])),
    ("logaddexp", (ROW, COLUMN)),
    ("logaddexp2", (EDGES[:-1], EDGES[:-1])),
    ("nextafter", (EDGES, EDGES.flip(0))),
    ("ldexp.Tensor", (ROW, torch.tensor([1, -2, 0, 5]))),
    ("lerp.Tensor", (ROW, COLUMN, RANDOM[7:19].abs().reshape(3, 4))),
    ("lerp.Scalar", (ROW, COLUMN, 0.3)),
    ("lerp.Scalar", (ROW.bfloat16(), COLUMN.bfloat16(), 0.8)),
    ("complex", (ROW, COLUMN)),
    ("polar", (ROW.abs(), COLUMN)),
    ("gcd", (WHOLE, DIVISORS)),
    ("gcd", (WHOLE, torch.zeros_like(WHOLE))),
    ("lcm", (WHOLE, DIVISORS)),
    ("heaviside", (EDGES, torch.tensor(0.5))),
    ("fmax", (EDGES, EDGES.flip(0))),
    ("fmin", (EDGES, EDGES.flip(0))),
    ("maximum", (EDGES, EDGES.flip(0))),
    ("minimum", (WHOLE, torch.tensor(2.5))),
    ("maximum", (BOOLS, ~BOOLS)),
    ("where.self", (BOOLS, torch.tensor([1, 2]), torch.tensor(0.5))),
    ("where.self", (BOOLS, COLUMN, RANDOM[:2].double().reshape(1, 2))),
]


@pytest.mark.parametrize(("name", "args"), BINARY)
def test_binary_functions_equal_cpu(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", *args, table=TABLE)


@pytest.mark.parametrize("value", [1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_addcmul_addcdiv_equal_cpu(name: str, dtype: torch.dtype, value: float) -> None:
    operands = (ROW.to(dtype), COLUMN.to(dtype), (RANDOM[7:19].abs().reshape(3, 4) + 0.5).to(dtype))
    check(f"aten::{name}", *operands, value=value, table=TABLE)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("pair", ["broadcast", "edges", "int and 0-d float", "uint8 and int8"])
def test_comparisons_equal_cpu(name: str, pair: str) -> None:
    check(f"aten::{name}.Tensor", *PAIRS[pair], table=TABLE)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize(("x", "number"), [(EDGES, 0.5), (WHOLE, 1.5), (WHOLE, 2), (BOOLS, 1)])
def test_comparisons_with_numbers_equal_cpu(name: str, x: torch.Tensor, number: float) -> None:
    check(f"aten::{name}.Scalar", x, number, table=TABLE)


def test_comparison_rounds_the_number_to_the_tensor_dtype() -> None:
    check("aten::eq.Scalar", torch.tensor([0.1, 0.2]).bfloat16(), 0.1, table=TABLE)


CLAMPS = [
    ("clamp", (EDGES, -1.0, 2.0)),
    ("clamp", (EDGES, None, 2)),
    ("clamp", (WHOLE, 1, None)),
    ("clamp", (WHOLE, 0.5, 2.5)),
    ("clamp", (EDGES, 3.0, -3.0)),
    ("clamp", (EDGES, NAN, None)),
    ("clamp.Tensor", (ROW, COLUMN, None)),
    ("clamp.Tensor", (ROW, -COLUMN.abs(), COLUMN.abs())),
    ("clamp_min", (EDGES, 0)),
    ("clamp_max", (WHOLE, 2)),
    ("clamp_max.Tensor", (ROW, COLUMN)),
]


@pytest.mark.parametrize(("name", "args"), CLAMPS)
def test_clamp_equals_cpu(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", *args, table=TABLE)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("x", [EDGES, WHOLE, COMPLEX], ids=["float", "int", "complex"])
def test_logic_equals_cpu(name: str, x: torch.Tensor) -> None:
    check(f"aten::{name}", x, x.flip(0), table=TABLE)
    check("aten::logical_not", x, table=TABLE)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("pair", [(WHOLE, DIVISORS), (BOOLS, ~BOOLS)])
def test_bitwise_equals_cpu(name: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    check(f"aten::{name}.Tensor", *pair, table=TABLE)
    check(f"aten::{name}.Scalar", WHOLE, 6, table=TABLE)
    check(f"aten::{name}.Scalar_Tensor", 6, WHOLE.to(torch.uint8), table=TABLE)


SHIFTS = torch.tensor([0, 1, 2, 3, 7, 8, 31, 9], dtype=torch.int64)


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.int32])
def test_shifts_equal_cpu(name: str, dtype: torch.dtype) -> None:
    check(f"aten::{name}.Tensor", WHOLE.to(dtype), SHIFTS.to(dtype), table=TABLE)
    check(f"aten::{name}.Tensor_Scalar", WHOLE.to(dtype), 2, table=TABLE)


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_round_decimals_equals_cpu(decimals: int) -> None:
    x = torch.tensor([12.345, -0.555, 1e6, 15.0])
    check("aten::round.decimals", x, decimals=decimals, table=TABLE)


def test_nan_to_num_replacements_equal_cpu() -> None:
    check("aten::nan_to_num", EDGES, 1.0, 2.0, -3.0, table=TABLE)


CASTS = [
    (EDGES[:10], torch.int32),
    (EDGES[:10], torch.uint8),
    (EDGES, torch.bool),
    (EDGES, torch.bfloat16),
    (EDGES, torch.float64),
    (WHOLE, torch.int8),
    (WHOLE, torch.float16),
    (BOOLS, torch.float32),
    (COMPLEX, torch.bool),
    (ROW, torch.complex64),
]


@pytest.mark.parametrize(("x", "dtype"), CASTS)
def test_cast_equals_cpu(x: torch.Tensor, dtype: torch.dtype) -> None:
    check("aten::_to_copy", x, dtype=dtype, table=TABLE)


FILLS = [
    ("fill.Scalar", (WHOLE, 2.7)),
    ("fill.Scalar", (ROW, True)),
    ("fill.Tensor", (ROW.bfloat16(), SCALAR)),
    ("zero", (ROW,)),
    ("clone", (EDGES,)),
    ("copy", (torch.zeros(3, 4), ROW)),
    ("copy", (torch.zeros(3, 4, dtype=torch.int32), COLUMN * 5)),
]


@pytest.mark.parametrize(("name", "args"), FILLS)
def test_copies_and_fills_equal_cpu(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", *args, table=TABLE)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(WHOLE, WHOLE, True), (WHOLE, DIVISORS, False), (ROW, ROW.T, False), (EMPTY, EMPTY, True)],
)
def test_equal_compares_shapes_and_values(x: torch.Tensor, y: torch.Tensor, expected: bool) -> None:
    row = next(r for r in TABLE if r.overload == "aten::equal")
    assert row.function is not None
    assert row.function(x, y) is expected


@pytest.mark.parametrize("overload", ["aten::mul.Tensor", "aten::native_dropout_backward"])
def test_product_of_infinity_and_false_is_nan(overload: str) -> None:
    mask = torch.tensor([False, True]).repeat_interleave(len(EDGES))
    rest = (2.0,) if overload == "aten::native_dropout_backward" else ()
    check(overload, EDGES.repeat(2), mask, *rest, table=(*TABLE, *random.TABLE))


def test_product_with_a_converted_mask_keeps_nan() -> None:
    convert = next(r for r in TABLE if r.overload == "aten::_to_copy")

    def masked(x: jax.Array, mask: jax.Array) -> jax.Array:
        assert convert.function is not None
        return x * convert.function(mask, dtype=torch.float32)

    mask = torch.zeros(len(EDGES), dtype=torch.bool)
    actual = jax.jit(masked)(EDGES.numpy(), mask.numpy())
    torch.testing.assert_close(to_cpu(actual), EDGES * mask.float(), equal_nan=True)
