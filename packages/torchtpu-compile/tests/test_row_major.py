# SPDX-License-Identifier: Apache-2.0
"""Merging and cutting dimensions of open size moves rows and does not look elements up."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from torchtpu_compile import row_major
from torchtpu_compile.padded import Padded, Sizes

A, B, C = sympy.symbols("a b c", positive=True, integer=True)
PADDED = {A: 64, B: 32, C: 16}
TRUE = {A: 37, B: 30, C: 5}

#: Sizes of dimensions before and behind: rows of few elements and of many.
SURROUNDINGS = [((), ()), ((), (300,)), ((3,), (2, 64))]


def _sizes() -> Sizes:
    return Sizes(PADDED, {s: jnp.asarray(n, np.int64) for s, n in TRUE.items()})


def _value(seed: int, *exprs: sympy.Expr) -> tuple[np.ndarray, Padded]:
    """A random array of the true sizes, and padded with NaN."""
    sizes = _sizes()
    true = np.random.default_rng(seed).random([int(e.subs(TRUE)) for e in exprs])
    dims = tuple(sizes.dim(e) for e in exprs)
    room = np.full([sizes.padded(e) for e in exprs], np.nan)
    room[tuple(slice(0, n) for n in true.shape)] = true
    return true, Padded(jnp.asarray(room), dims)


def _front(x: Padded, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(x.array)[tuple(slice(0, n) for n in shape)]


@pytest.mark.parametrize(("before", "behind"), SURROUNDINGS)
def test_rows_that_are_joined_have_nothing_between_them(
    before: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    with jax.enable_x64(True):
        array = np.random.default_rng(0).random((*before, 9, 16, *behind))
        at = (slice(None),) * len(before)
        given = jnp.asarray(array)
        found = row_major.joined(given, len(before), jnp.asarray(7), jnp.asarray(11), 80)
        expected = array[(*at, slice(7), slice(11))].reshape(*before, 77, *behind)
        assert found.shape == (*before, 80, *behind)
        np.testing.assert_array_equal(np.asarray(found)[(*at, slice(77))], expected)


@pytest.mark.parametrize(("before", "behind"), SURROUNDINGS)
def test_a_dimension_is_cut_into_rows_of_the_true_length(
    before: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    with jax.enable_x64(True):
        array = np.random.default_rng(0).random((*before, 80, *behind))
        at = (slice(None),) * len(before)
        given = jnp.asarray(array)
        found = row_major.parted(given, len(before), jnp.asarray(7), jnp.asarray(11), (9, 16))
        expected = array[(*at, slice(77))].reshape(*before, 7, 11, *behind)
        assert found.shape == (*before, 9, 16, *behind)
        np.testing.assert_array_equal(np.asarray(found)[(*at, slice(7), slice(11))], expected)


@pytest.mark.parametrize("flat", [(A * B * C,), (A * B, C), (A, B * C), (A * C * B, sympy.S(1))])
def test_open_dimensions_are_merged_and_cut_again(flat: tuple[sympy.Expr, ...]) -> None:
    with jax.enable_x64(True):
        true, x = _value(0, A, B, C)
        merged = _sizes().compact(_sizes().reshaped(x, flat))
        expected = true.reshape([int(e.subs(TRUE)) for e in flat])
        np.testing.assert_array_equal(_front(merged, expected.shape), expected)
        cut = _sizes().reshaped(merged, (A, B, C))
        np.testing.assert_array_equal(_front(cut, true.shape), true)


def test_a_cut_in_places_that_no_dimension_had_is_right() -> None:
    with jax.enable_x64(True):
        true, x = _value(0, A * B, C)
        cut = _sizes().reshaped(x, (B, A * C))
        expected = true.reshape(TRUE[B], TRUE[A] * TRUE[C])
        np.testing.assert_array_equal(_front(_sizes().compact(cut), expected.shape), expected)


def _looked_up(jaxpr: jax.extend.core.Jaxpr) -> int:
    """The most indices that a lookup of a program has."""
    most = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "gather":
            most = max(most, int(np.prod(eqn.invars[1].aval.shape)))
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            most = max(most, _looked_up(inner) if hasattr(inner, "eqns") else 0)
    return most


@pytest.mark.parametrize(
    ("before", "after"),
    [((A, B, C), (A * B * C,)), ((A, B, C), (A, B * C)), ((A * B * C,), (A, B, C))],
)
def test_no_element_is_looked_up_where_long_rows_are_merged_or_cut(
    before: tuple[sympy.Expr, ...], after: tuple[sympy.Expr, ...]
) -> None:
    def regrouped(array: jax.Array) -> jax.Array:
        sizes = _sizes()
        return sizes.compact(sizes.reshaped(Padded(array, x.dims), after)).array

    with jax.enable_x64(True):
        _, x = _value(0, *before)
        assert _looked_up(jax.make_jaxpr(regrouped)(x.array).jaxpr) == 0


def _primitives(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    """The primitives of a program, at any depth."""
    found = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            found |= _primitives(inner) if hasattr(inner, "eqns") else set()
    return found


def test_rows_of_fixed_length_are_merged_without_moving() -> None:
    """Tokens of a batch of open size, `[B, 48, 8]` -> `[B * 48, 8]`, with `B` outermost or not."""
    for before, after in (((A, 48, 8), (A * 48, 8)), ((6, A, 48), (6, A * 48))):
        with jax.enable_x64(True):
            true, x = _value(0, *map(sympy.sympify, before))
            sizes, exprs = _sizes(), list(map(sympy.sympify, after))

            def merged(array: jax.Array, dims=x.dims, sizes=sizes, exprs=exprs) -> jax.Array:
                return sizes.compact(sizes.reshaped(Padded(array, dims), exprs)).array

            assert _primitives(jax.make_jaxpr(merged)(x.array).jaxpr) == {"reshape"}
            expected = true.reshape([int(e.subs(TRUE)) for e in exprs])
            found = sizes.compact(sizes.reshaped(x, exprs))
            np.testing.assert_array_equal(_front(found, expected.shape), expected)


def test_padding_is_told_from_data_without_divisions() -> None:
    """Where data counts in dimensions of one factor and of several."""
    with jax.enable_x64(True):
        sizes = _sizes()
        true, x = _value(0, A, sympy.sympify(3), B, C)
        merged = sizes.reshaped(x, [A * 3, B * C])

        def filled(array: jax.Array) -> jax.Array:
            return sizes.filled(Padded(array, merged.dims), 7).array

        found = filled(merged.array).reshape(x.array.shape)
        expected = np.full(x.array.shape, 7.0)
        expected[tuple(slice(0, n) for n in true.shape)] = true
        np.testing.assert_array_equal(np.asarray(found), expected)
        assert not _primitives(jax.make_jaxpr(filled)(merged.array).jaxpr) & {"rem", "div", "pjit"}
