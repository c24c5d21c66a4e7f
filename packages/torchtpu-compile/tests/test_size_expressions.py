# SPDX-License-Identifier: Apache-2.0
"""Expressions of sizes and the largest value they can have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import (
    FloatTrueDiv,
    FloorDiv,
    Max,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges
from torchtpu_compile.buckets import BELOW_ZERO
from torchtpu_compile.guard_equations import EqualProducts, largest_that_holds
from torchtpu_compile.padded import Sizes
from torchtpu_compile.size_sources import readers, sources_of, true_sizes
from torchtpu_compile.symbols import (
    Unbounded,
    _whole_divisions,
    evaluate,
    expression,
    grows,
    largest,
)

S, T, U, K, L = sympy.symbols("s0 s1 s2 s3 s4", positive=True, integer=True)


@pytest.mark.parametrize("most", [1, 3, 8, 40])
def test_largest_value_of_a_quotient_skips_sizes_where_it_has_none(most: int) -> None:
    values = [64 // (n // 4) for n in range(4, most + 1)]
    assert largest(FloorDiv(64, FloorDiv(S, 4)), most) == max(values, default=0)


def test_a_division_by_a_division_is_in_lowest_terms() -> None:
    """A packed matrix `[s, 2 s]` viewed as `[-1, s]`, and what that is viewed as next."""
    inner = FloorDiv(2 * S**2, S, evaluate=False)
    assert expression(FloorDiv(4 * S**2, inner, evaluate=False)) == 2 * S


A, B = sympy.symbols("u0 u1", integer=True)


@pytest.mark.parametrize(
    ("expr", "most"),
    [(B - A, 16), (B - A + 3, 19), (S * (B - A), 64 * 16), (Max(0, 2 - A), 2), (A - B - 1, 63)],
)
def test_difference_is_at_most_what_the_ranges_of_its_symbols_allow(expr: Any, most: int) -> None:
    assert Sizes({S: 64, A: 64, B: 16}, {}).padded(expr) == most


def test_difference_from_a_number_below_zero_has_no_bound() -> None:
    with pytest.raises(Unbounded, match="no bound"):
        Sizes({A: BELOW_ZERO, B: 16}, {}).padded(B - A)


def test_symbol_is_found_in_a_product_with_another_one() -> None:
    interface = SimpleNamespace(numbers=())
    sources = sources_of({S, T, U}, interface, [[2 * S * T, T], [S * U]])
    tensors = torch.empty(2 * 3 * 5, 5), torch.empty(3 * 7)
    assert true_sizes(sources, tensors, ()) == {S: 3, T: 5, U: 7}


def test_symbols_that_only_have_a_product_are_not_found() -> None:
    with pytest.raises(Unbounded, match="s0"):
        sources_of({S, T}, SimpleNamespace(numbers=()), [[S * T]])


def test_size_of_0_tells_no_other_size() -> None:
    sources = sources_of({S, T}, SimpleNamespace(numbers=()), [[S * T, T]])
    with pytest.raises(Unbounded, match="size of 0"):
        true_sizes(sources, [torch.empty(0, 0)], ())


def test_rounded_quotient_of_a_multiple_is_the_whole_quotient() -> None:
    windows = 2 * S * T
    batch = TruncToInt(FloatTrueDiv(ToFloat(windows), sympy.Float(2)))
    assert expression(FloorDiv(windows, batch)) == 2


def test_rounded_quotient_that_may_leave_a_rest_stays() -> None:
    rounded = TruncToInt(FloatTrueDiv(ToFloat(3 * S), sympy.Float(2)))
    assert expression(rounded) == rounded


def test_rounded_quotient_of_a_fraction_stays_whole() -> None:
    """Places of an expert: ``int(1.25 * 2 * tokens / 4)``."""
    capacity = TruncToInt(FloatTrueDiv(sympy.Float(2.5) * ToFloat(S), sympy.Float(4)))
    assert expression(capacity) == capacity
    simplified = TruncToInt(FloatTrueDiv(sympy.Float(2.5) * S, sympy.Float(4)))
    assert evaluate(expression(simplified), {S: 7}) == int(2.5 * 7 / 4)


def with_guard(expr: sympy.Expr, guard: sympy.Expr) -> Any:
    """A symbolic size of a tracer that has one guard."""
    shape_env = ShapeEnv()
    shape_env.var_to_range |= dict.fromkeys((S, T, U, K, L), ValueRanges(2, int_oo))
    shape_env.guards.append(SimpleNamespace(expr=guard))
    return torch.SymInt(SymNode(expr, shape_env, int, None))


@pytest.mark.parametrize(
    ("expr", "guard", "expected"),
    [
        (3 * FloorDiv(S, 3), sympy.Eq(Mod(S, 3), 0), S),
        (6 * Max(1, FloorDiv(S, 3)), sympy.Eq(Mod(S, 3), 0), 2 * S),
        (FloorDiv(S, 3) + 1, sympy.Eq(Mod(S, 3), 0), FloorDiv(S, 3) + 1),
        (3 * FloorDiv(S, 3), sympy.Eq(Mod(S, 2), 0), 3 * FloorDiv(S, 3)),
        (8 * FloorDiv(S, 8), sympy.Eq(PythonMod(-S, 8), 0), S),
        (FloorDiv(S, FloorDiv(S, 8)), sympy.Eq(PythonMod(-S, 8), 0), 8),
        (2 * Max(1, FloorDiv(S, FloorDiv(S, 8))), sympy.Eq(PythonMod(-S, 8), 0), 16),
        (Max(1, FloorDiv(S, 3 * FloorDiv(S, 8))), sympy.Eq(Mod(S, 8), 0), 2),
        (FloorDiv(S, FloorDiv(T, 8)), sympy.Eq(Mod(T, 8), 0), FloorDiv(S, FloorDiv(T, 8))),
        (FloorDiv(S - 1, 2), sympy.Eq(FloorDiv(S - 1, 2), 1), 1),
        (FloorDiv(S, 4), sympy.Eq(2 * FloorDiv(S, 4) - 1, 5), 3),
        (4 * FloorDiv(S, 4), sympy.Eq(S * T, 4 * T * FloorDiv(S, 4)), S),
        (3 * FloorDiv(S, 3), sympy.Eq(S * T, 4 * T * FloorDiv(S, 4)), 3 * FloorDiv(S, 3)),
        (4 * FloorDiv(S, 4), sympy.Eq(S * T, 3 * T * FloorDiv(S, 4)), 4 * FloorDiv(S, 4)),
    ],
)
def test_guards_simplify_quotients(expr: Any, guard: Any, expected: Any) -> None:
    assert expression(with_guard(expr, guard)) == expected


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (K * L, S * T),
        (3 * K * L, 3 * S * T),
        (FloorDiv(K * L, S), T),
        (FloorDiv(S * T, K), L),
        (FloorDiv(3 * S * T, K), 3 * L),
        (FloorDiv(K * L, 2 * S), FloorDiv(T, 2)),
        (FloorDiv(K * L, U), FloorDiv(K * L, U)),
        (FloorDiv(S * U, K), FloorDiv(S * U, K)),
    ],
)
def test_shares_of_equal_products_are_sizes(expr: Any, expected: Any) -> None:
    """The pixels of two images, all compared: ``[H*W, 8] @ [8, K*L]`` viewed as ``[H*W, H, W]``."""
    assert expression(with_guard(expr, sympy.Eq(8 * K * L, 8 * S * T))) == expected


@pytest.mark.parametrize(
    ("equation", "traced", "expected"),
    [
        (sympy.Eq(FloorDiv(S + 1, 2), 2), 3, 4),
        (sympy.Eq(FloorDiv(S + 1, 2), 2), 4, 4),
        (sympy.Eq(S - FloorDiv(S + 1, 2), 50), 100, 101),
        (sympy.Eq(Mod(S, 8), 0), 16, None),
        (sympy.Eq(Mod(S, 128), 0), 128, None),
        (sympy.Eq(FloorDiv(S + 127, 128), 1), 9, None),
        (sympy.Eq(T * S, 32), 4, None),
    ],
)
def test_guards_bound_a_size(equation: sympy.Eq, traced: int, expected: int | None) -> None:
    guards = [SimpleNamespace(expr=equation), SimpleNamespace(expr=sympy.Ne(S, 1))]
    shape_env = SimpleNamespace(guards=guards, backed_var_to_val={S: sympy.Integer(traced)})
    assert largest_that_holds(S, shape_env) == expected


def _share(number: float) -> sympy.Expr:
    return TruncToInt(number * ToFloat(S))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (S - FloorDiv(S, 4), True),
        (FloorDiv(S, 4) * FloorDiv(T, 4) - FloorDiv(FloorDiv(S, 4) * FloorDiv(T, 4), 4), True),
        (S * T - T * FloorDiv(S, 2), True),
        (S - _share(0.75), True),
        (S - TruncToInt(FloatTrueDiv(ToFloat(S), sympy.Float(4))), True),
        (2 * S - FloorDiv(S, 4) - FloorDiv(S, 3), True),
        (S - 2 * FloorDiv(S, 2), False),
        (S - FloorDiv(T, 4), False),
        (S - _share(1.5), False),
    ],
)
def test_what_is_left_of_a_size_without_a_part_of_it_grows(size: Any, expected: bool) -> None:
    assert grows(size) is expected
    values = [[evaluate(size, {S: s, T: t}) for s in range(1, 24)] for t in range(1, 24)]
    rows = (*values, *zip(*values, strict=True))
    assert all(list(row) == sorted(row) for row in rows) is expected


def test_a_size_stands_before_the_stride_of_a_tensor_that_kept_its_padding() -> None:
    mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC, DimDynamic.DYNAMIC])
    value = mode.from_tensor(torch.empty(3, 5), symbolic_context=context)
    padded = torch.empty(3, 8)[:, :5]
    assert [read([padded]) for read in readers([value]).values()] == [5]


def test_division_that_also_divides_within_another_factor_is_compared() -> None:
    """Chunks of a padded length: their count, and the length by their count."""
    length = S + Mod(4 - Mod(S, 4), 4)
    chunks = FloorDiv(length, 4)
    chunk = Max(1, FloorDiv(length, chunks))
    assert _whole_divisions([(chunks * chunk, length)]) == set()
    assert _whole_divisions([(4 * chunks, length), (T * chunks * chunk, S)]) == {(length, 4)}


def test_equal_products_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    products = EqualProducts({K * L: (sympy.Integer(1), S * T)})
    first = products.all_of(2 * K * L)
    monkeypatch.setattr(sympy, "cancel", None)
    assert products.all_of(2 * K * L) == first
    assert set(first) == {2 * K * L, 2 * S * T}
