# SPDX-License-Identifier: Apache-2.0
"""Lowerings that take another form on a TPU give the values of the CPU's form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval
from torchtpu_core.lowering import addressing, extrema, layout, matmul, scans, shape, sorting

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("dim", "dtype"), [(0, np.float32), (1, np.int32), (2, np.bool_)])
def test_one_index_for_each_row_is_compared_and_not_gathered(both, dim, dtype) -> None:
    x = RANDOM.integers(-2, 3, (4, 5, 3)).astype(dtype)
    rows = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    index = RANDOM.integers(0, x.shape[dim], rows).astype(np.int32)
    text, (gathered, compared) = both(lambda v, i: addressing.take_elements(v, dim, i), x, index)
    assert "gather" not in text
    np.testing.assert_array_equal(compared, gathered)


@pytest.mark.parametrize("how", ["set", "sum", "prod", "amin", "amax"])
def test_one_update_for_each_row_is_compared_and_not_scattered(both, how) -> None:
    x = RANDOM.standard_normal((4, 5)).astype(np.float32)
    x[0, 0] = np.nan
    index = RANDOM.integers(0, 5, (4, 1)).astype(np.int32)
    updates = RANDOM.standard_normal((4, 1)).astype(np.float32)
    text, (scattered, compared) = both(
        lambda v, i, u: addressing.put_elements(1, i)(v, u, how), x, index, updates
    )
    assert "scatter" not in text
    np.testing.assert_array_equal(compared, scattered)


def test_element_that_is_not_finite_is_picked_and_harms_no_other(both) -> None:
    x = np.array([[np.inf, 1.0], [np.nan, 2.0]], np.float32)
    _, results = both(
        lambda v, i: addressing.take_elements(v, 1, i), x, np.array([[1], [0]], np.int32)
    )
    for found in results:
        np.testing.assert_array_equal(found, [[1.0], [np.nan]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_carries_the_values_and_gathers_none(lowering_of, both, dtype, descending) -> None:
    x = RANDOM.integers(0, 9, (3, 20)).astype(jnp.dtype(dtype))
    if dtype == "float32":
        x[0, :4] = [np.nan, -0.0, np.inf, -np.inf]
    sort = lowering_of(sorting, "sort")
    with jax.enable_x64(True):
        text, (packed, together) = both(lambda v: sort(v, -1, descending), x)
    assert "gather" not in text
    for one, other in zip(packed, together, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("right", [False, True])
def test_search_compares_all_and_does_not_bisect(lowering_of, both, right, monkeypatch) -> None:
    monkeypatch.setattr(sorting, "_ALL_PAIRS_LIMIT", 0)
    sequence = np.sort(RANDOM.integers(0, 9, (3, 20)), axis=1).astype(np.float32)
    values = RANDOM.integers(-1, 10, (3, 8)).astype(np.float32)
    search = lowering_of(sorting, "searchsorted.Tensor")
    with jax.enable_x64(True):
        text, (bisected, compared) = both(lambda s, v: search(s, v, right=right), sequence, values)
    assert "gather" not in text
    np.testing.assert_array_equal(bisected, compared)


def test_cumulative_sum_between_flips_is_one_from_the_end() -> None:
    flip, cumsum = (
        next(row.function for row in table if row.overload == f"aten::{name}")
        for table, name in ((shape.TABLE, "flip"), (scans.TABLE, "cumsum"))
    )

    def gradient(x):
        with layout.remembering():
            return flip(cumsum(flip(x, [-2]), 1), [1])

    x = RANDOM.standard_normal((2, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(gradient(x), np.cumsum(x[:, ::-1], 1)[:, ::-1], rtol=1e-5)
    made, _ = partial_eval.dce_jaxpr(jax.make_jaxpr(gradient)(x).jaxpr, [True])
    assert [eqn.primitive.name for eqn in made.eqns] == ["cumsum"]
    other = flip(cumsum(flip(x, [0]), 1), [0])
    np.testing.assert_allclose(other, np.cumsum(x, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "dimensions"),
    [
        ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
        ((2, 3, 4), (2, 5, 4), (((2,), (2,)), ((0,), (0,)))),
        ((2, 3, 4), (2, 4, 5), (((0, 2), (0, 1)), ((), ()))),
        ((4,), (4,), (((0,), (0,)), ((), ()))),
    ],
)
def test_products_of_64_bit_integers_are_sums_that_a_tpu_has(both, x, y, dimensions) -> None:
    first, second = (RANDOM.integers(-(2**40), 2**40, shape) for shape in (x, y))
    with jax.enable_x64(True):
        text, (dot, summed) = both(
            lambda a, b: matmul.general(a, b, dimensions, np.dtype(np.int64)), first, second
        )
    assert "dot_general" not in text
    np.testing.assert_array_equal(dot, summed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "bool"])
@pytest.mark.parametrize("which", ["max.dim", "min.dim"])
def test_extreme_and_its_place_are_found_in_one_pass_on_a_tpu(
    lowering_of, both, which, dtype
) -> None:
    x = RANDOM.integers(0, 3, (5, 7, 4)).astype(jnp.dtype(dtype))
    if dtype in ("float32", "bfloat16"):
        x[0, 2:4, 1], x[1, :, 2], x[2, :, 0] = np.nan, np.inf, -np.inf
    function = lowering_of(extrema, which)
    text, (several, once) = both(lambda v: function(v, 1), x)
    assert text.count("reduce[") == text.count(" reduce") == 1
    for one, other in zip(several, once, strict=True):
        np.testing.assert_array_equal(*(np.asarray(a, np.float64) for a in (one, other)))
    index = lowering_of(extrema, "argmax" if which == "max.dim" else "argmin")
    _, (several, once) = both(lambda v: index(v, 1), x)
    np.testing.assert_array_equal(once, several)


def test_maximum_keeps_nan_without_a_look_for_it_on_a_tpu(both) -> None:
    x = np.array([[1, np.nan, 2], [3, 4, 5]], np.float32)
    text, (looked, plain) = both(lambda v: extrema.amax(v, 1), x)
    assert "reduce_or" not in text
    np.testing.assert_array_equal(plain, looked)
