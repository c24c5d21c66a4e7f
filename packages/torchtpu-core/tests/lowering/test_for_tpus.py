# SPDX-License-Identifier: Apache-2.0
"""Lowerings that take another form on a TPU give the values of the CPU's form."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval
from torchtpu_core.lowering import (
    addressing,
    arithmetic,
    average_pooling,
    convolution,
    embedding,
    extrema,
    layout,
    matmul,
    mxu,
    padding,
    pooling,
    random,
    reductions,
    scans,
    shape,
    softmax,
    sorting,
    upsample,
)
from torchtpu_core.lowering.convolution_geometry import geometry_of
from torchtpu_core.lowering.rng import Rng

RANDOM = np.random.default_rng(0)


def both(function: Callable[..., jax.Array], *arguments: np.ndarray) -> tuple[str, list]:
    """The program for a TPU, and the results of both forms."""

    def remembered(*given: jax.Array) -> jax.Array:
        with layout.remembering():
            return function(*given)

    results = [jax.jit(lambda *a: remembered(*a))(*arguments)]
    with mxu.for_platform("tpu"):
        text = str(jax.make_jaxpr(remembered)(*arguments))
        results.append(jax.jit(remembered)(*arguments))
    return text, results


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "padding", "ceil_mode"),
    [
        ((9, 8), [2, 2], [2, 2], [0, 0], False),
        ((7, 9), [2, 3], [3, 3], [1, 0], True),
        ((9, 8), [3, 3], [2, 2], [1, 1], False),
        ((8, 9), [4, 3], [3, 2], [2, 1], True),
        ((2, 3), [3, 3], [1, 1], [1, 1], False),
    ],
)
def test_pooling_is_by_operators_of_xla(sizes, kernel, stride, padding, ceil_mode) -> None:
    forward, backward = (
        next(row.function for row in pooling.TABLE if row.overload == f"aten::{name}")
        for name in ("max_pool2d_with_indices", "max_pool2d_with_indices_backward")
    )
    how = (kernel, stride, padding, [1], ceil_mode)
    x = RANDOM.integers(0, 4, (2, 3, *sizes)).astype(np.float32)
    text, (folded, reduced) = both(lambda v: forward(v, *how), x)
    assert "reduce_window_max" in text
    np.testing.assert_array_equal(reduced[0], folded[0])
    np.testing.assert_array_equal(reduced[1], folded[1])
    grad = RANDOM.standard_normal(folded[0].shape).astype(np.float32)
    text, (placed, selected) = both(
        lambda g, v, i: backward(g, v, *how, i), *(grad, x, np.asarray(folded[1]))
    )
    assert "select_and_scatter" in text
    np.testing.assert_allclose(selected, placed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dim", "dtype"), [(0, np.float32), (1, np.int32), (2, np.bool_)])
def test_one_index_for_each_row_is_compared_and_not_gathered(dim, dtype) -> None:
    x = RANDOM.integers(-2, 3, (4, 5, 3)).astype(dtype)
    rows = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    index = RANDOM.integers(0, x.shape[dim], rows).astype(np.int32)
    text, (gathered, compared) = both(lambda v, i: addressing.take_elements(v, dim, i), x, index)
    assert "gather" not in text
    np.testing.assert_array_equal(compared, gathered)


@pytest.mark.parametrize("how", ["set", "sum", "prod", "amin", "amax"])
def test_one_update_for_each_row_is_compared_and_not_scattered(how) -> None:
    x = RANDOM.standard_normal((4, 5)).astype(np.float32)
    x[0, 0] = np.nan
    index = RANDOM.integers(0, 5, (4, 1)).astype(np.int32)
    updates = RANDOM.standard_normal((4, 1)).astype(np.float32)
    text, (scattered, compared) = both(
        lambda v, i, u: addressing.put_elements(1, i)(v, u, how), x, index, updates
    )
    assert "scatter" not in text
    np.testing.assert_array_equal(compared, scattered)


@pytest.mark.parametrize(("shape", "once"), [((2, 3, 4), False), ((2, 2, 3, 4), True)])
def test_mask_of_probabilities_is_written_where_it_is_drawn(shape, once) -> None:
    row = next(row.function for row in random.TABLE if row.overload == "aten::native_dropout")
    state = np.array([3, 4], np.uint32)

    def dropped(x: jax.Array, state: jax.Array) -> jax.Array:
        rng = Rng(state[0].astype(jnp.uint64), state[1].astype(jnp.uint64))
        return row(x, 0.5, True, rng=rng)[0]

    with jax.enable_x64(True):
        text, (plain, kept) = both(dropped, np.ones(shape, np.float32), state)
    assert ("optimization_barrier" in text) == once
    np.testing.assert_array_equal(plain, kept)


def test_element_that_is_not_finite_is_picked_and_harms_no_other() -> None:
    x = np.array([[np.inf, 1.0], [np.nan, 2.0]], np.float32)
    _, results = both(
        lambda v, i: addressing.take_elements(v, 1, i), x, np.array([[1], [0]], np.int32)
    )
    for found in results:
        np.testing.assert_array_equal(found, [[1.0], [np.nan]])


def _layer(x: jax.Array, weight: jax.Array, bias: jax.Array, grad: jax.Array) -> tuple:
    """A linear layer and its gradients, with the views that PyTorch makes."""
    transposed = layout.permuted(weight, (1, 0))
    rows = layout.reshaped(x, (-1 if x.size == 0 else x.size // x.shape[-1], x.shape[-1]))
    addmm = next(r.function for r in matmul.TABLE if r.overload == "aten::addmm")
    out = layout.reshaped(addmm(bias, rows, transposed), (*x.shape[:-1], weight.shape[0]))
    given = layout.reshaped(grad, (rows.shape[0], grad.shape[-1]))
    of_input = layout.reshaped(matmul.mm(given, weight), x.shape)
    return out, of_input, matmul.mm(layout.permuted(given, (1, 0)), rows)


@pytest.mark.parametrize(("tokens", "joins"), [(5, False), (8, True)])
def test_rows_that_do_not_fill_tiles_are_multiplied_before_they_are_joined(tokens, joins) -> None:
    arrays = [
        RANDOM.standard_normal(shape).astype(np.float32)
        for shape in ((2, 3, tokens, 4), (6, 4), (6,), (2, 3, tokens, 6))
    ]
    text, (plain, whole) = both(_layer, *arrays)
    products = [line for line in text.splitlines() if "dot_general" in line]
    joined = f"f32[{6 * tokens},"
    assert len(products) == 3
    assert any(joined in line for line in products) == joins
    for one, other in zip(plain, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def _row(module: object, overload: str) -> Callable[..., jax.Array]:
    return next(r.function for r in module.TABLE if r.overload == f"aten::{overload}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "sizes", "align"),
    [
        ("bilinear2d", ((5, 4), (10, 8)), True),
        ("bilinear2d", ((6, 9), (4, 5)), False),
        ("bicubic2d", ((4, 3), (7, 6)), False),
        ("linear1d", ((4,), (8,)), False),
        ("nearest2d", ((3, 2), (6, 6)), None),
    ],
)
def test_interpolation_and_its_gradient_multiply_and_do_not_gather(
    kind, sizes, align, dtype
) -> None:
    small, large = sizes
    rest = () if align is None else (align,)
    x = RANDOM.standard_normal((2, 3, *small)).astype(jnp.dtype(dtype))
    grad = RANDOM.standard_normal((2, 3, *large)).astype(jnp.dtype(dtype))
    forward, backward = (_row(upsample, f"upsample_{kind}{end}") for end in ("", "_backward"))
    bound = 1e-5 if dtype == "float32" else 1e-2
    for function, given in (
        (lambda x: forward(x, large, *rest), x),
        (lambda g: backward(g, large, x.shape, *rest), grad),
    ):
        text, (gathered, multiplied) = both(function, given)
        assert "gather" not in text
        np.testing.assert_allclose(
            np.float32(multiplied), np.float32(gathered), rtol=bound, atol=bound
        )


@pytest.mark.parametrize(("size", "out"), [(4, 3), (3, 4), (4, 1), (6, 3)])
def test_nearest_sizes_that_do_not_divide_are_no_sums_of_neighbours(size, out) -> None:
    x = RANDOM.standard_normal((2, 3, size)).astype(np.float32)
    grad = RANDOM.standard_normal((2, 3, out)).astype(np.float32)
    forward, backward = (_row(upsample, f"upsample_nearest1d{end}") for end in ("", "_backward"))
    _, (one, other) = both(lambda v: forward(v, (out,)), x)
    np.testing.assert_array_equal(one, other)
    _, (one, other) = both(lambda g: backward(g, (out,), x.shape), grad)
    np.testing.assert_array_equal(one, other)


def test_whole_numbers_are_interpolated_on_a_tpu_as_on_a_cpu() -> None:
    x = RANDOM.integers(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    for kind, rest in (("nearest2d", ()), ("bilinear2d", (False,))):
        forward = _row(upsample, f"upsample_{kind}")
        _, (one, other) = both(lambda v, f=forward, r=rest: f(v, (9, 7), *r), x)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_carries_the_values_and_gathers_none(dtype, descending) -> None:
    x = RANDOM.integers(0, 9, (3, 20)).astype(jnp.dtype(dtype))
    if dtype == "float32":
        x[0, :4] = [np.nan, -0.0, np.inf, -np.inf]
    sort = _row(sorting, "sort")
    with jax.enable_x64(True):
        text, (packed, together) = both(lambda v: sort(v, -1, descending), x)
    assert "gather" not in text
    for one, other in zip(packed, together, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("right", [False, True])
def test_search_compares_all_and_does_not_bisect(right, monkeypatch) -> None:
    monkeypatch.setattr(sorting, "_ALL_PAIRS_LIMIT", 0)
    sequence = np.sort(RANDOM.integers(0, 9, (3, 20)), axis=1).astype(np.float32)
    values = RANDOM.integers(-1, 10, (3, 8)).astype(np.float32)
    search = _row(sorting, "searchsorted.Tensor")
    with jax.enable_x64(True):
        text, (bisected, compared) = both(lambda s, v: search(s, v, right=right), sequence, values)
    assert "gather" not in text
    np.testing.assert_array_equal(bisected, compared)


def test_products_of_joined_batches_are_made_before_they_are_joined() -> None:
    def scores(q: jax.Array, k: jax.Array, bias: jax.Array) -> jax.Array:
        rows, columns = layout.reshaped(q, (6, 5, 4)), layout.reshaped(k, (6, 7, 4))
        product = matmul.bmm(rows, layout.permuted(columns, (0, 2, 1)))
        return layout.reshaped(product, (2, 3, 5, 7)) + bias

    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (3, 5, 7))
    text, (plain, whole) = both(
        scores, *(RANDOM.standard_normal(s).astype(np.float32) for s in shapes)
    )
    assert "f32[2,3,5,7]" in next(line for line in text.splitlines() if "dot_general" in line)
    np.testing.assert_allclose(plain, whole, rtol=1e-5, atol=1e-5)


def test_gradient_of_reflections_has_no_wider_copy_of_the_image() -> None:
    backward = _row(padding, "reflection_pad2d_backward")
    x = np.zeros((2, 3, 5, 6), jnp.bfloat16)
    grad = RANDOM.standard_normal((2, 3, 8, 8)).astype(jnp.bfloat16)
    text, (wide, narrow) = both(lambda g: backward(g, x, [1, 1, 2, 1]), grad)
    assert "f32" not in text
    np.testing.assert_allclose(np.float32(narrow), np.float32(wide), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "padding"),
    [
        ((21,), (16,), (8,), (4,)),
        ((20,), (7,), (4,), (0,)),
        ((10,), (2,), (4,), (1,)),
    ],
)
def test_strided_convolution_of_waves_is_of_their_phases(sizes, kernel, stride, padding) -> None:
    g = geometry_of(len(sizes), stride, padding, [1], 1)
    x = RANDOM.standard_normal((2, 3, *sizes)).astype(np.float32)
    weight = RANDOM.standard_normal((4, 3, *kernel)).astype(np.float32)
    out = convolution._out_sizes(sizes, kernel, g)
    grad = RANDOM.standard_normal((2, 4, *out)).astype(np.float32)
    for function, given in (
        (lambda x, w: convolution.forward(x, w, g), (x, weight)),
        (lambda d, w: convolution.input_gradient(d, w, sizes, g), (grad, weight)),
        (lambda d, x: convolution.weight_gradient(d, x, kernel, g), (grad, x)),
    ):
        text, (plain, phases) = both(function, *given)
        assert f"window_strides={stride}" not in text
        assert f"dilation={stride}" not in text
        np.testing.assert_allclose(phases, plain, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("given", [(8, 1), (1, 16), (1, 1), (8, 16)])
@pytest.mark.parametrize("swapped", [False, True])
def test_sum_with_a_broadcast_along_split_lanes_is_made_of_whole_lanes(given, swapped) -> None:
    scores = RANDOM.standard_normal((3, 5, 128)).astype(np.float32)
    rows = RANDOM.standard_normal((3, 5, *given)).astype(np.float32)
    rows[0, 0, 0, 0], rows[0, 1, 0, 0], rows[0, 2, 0, 0] = np.inf, -np.inf, np.nan
    rows[1, 0, 0, 0] = np.finfo(np.float32).min

    def added(scores: jax.Array, rows: jax.Array) -> jax.Array:
        split = layout.reshaped(scores, (3, 5, 8, 16))
        done = arithmetic.add(*((rows, split) if swapped else (split, rows)), alpha=2)
        return layout.reshaped(done, scores.shape)

    text, (cpu, tpu) = both(added, scores, rows)
    np.testing.assert_array_equal(cpu, tpu)
    assert text.count("dot_general") == (2 if given in ((8, 1), (1, 16)) else 0)
    assert ("f32[3,5,8,16] = add" in text) == (given == (8, 16))


@pytest.mark.parametrize(
    ("width", "rows", "written"), [(8000, 512, True), (8064, 512, False), (8000, 8, False)]
)
def test_large_tensors_that_are_joined_within_tiles_are_written_once(width, rows, written) -> None:
    part = jax.ShapeDtypeStruct((rows, width), np.float32)
    with mxu.for_platform("tpu"):
        text = str(jax.make_jaxpr(lambda x, y: shape.cat([x, y], -1))(part, part))
    assert ("optimization_barrier" in text) == written


@pytest.mark.parametrize(
    ("sizes", "dims", "made"),
    [
        ((2, 16, 128), [0], "[32,128]"),  # the gradient of a table of positions
        ((2, 16, 128), [1], "[32,128]"),  # a mean of tokens
        ((2, 3, 8, 128), [0], "[6,8,128]"),  # the gradient of a bias of scores
        ((2, 16, 128), [0, 1], ""),  # the gradient of what all rows share
        ((2, 16, 128), [2], ""),
        ((2, 16, 64), [0], ""),  # as rows it would be padded
        ((2, 15, 128), [0], ""),  # rows that fill no tiles are not multiplied as such
        ((16, 128), [0], ""),
    ],
)
@pytest.mark.parametrize("function", [reductions.sum_, reductions.mean])
def test_sums_over_leading_dimensions_are_of_what_products_make(
    sizes, dims, made, function
) -> None:
    x = RANDOM.standard_normal(sizes).astype(np.float32)
    text, (cpu, tpu) = both(lambda x: function(x, dims), x)
    np.testing.assert_allclose(tpu, cpu, rtol=1e-6)
    assert (f"f32{made} = optimization_barrier" in text) == bool(made)
    assert text.count("optimization_barrier") == bool(made)


@pytest.mark.parametrize(
    ("x", "y", "dimensions"),
    [
        ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
        ((2, 3, 4), (2, 5, 4), (((2,), (2,)), ((0,), (0,)))),
        ((2, 3, 4), (2, 4, 5), (((0, 2), (0, 1)), ((), ()))),
        ((4,), (4,), (((0,), (0,)), ((), ()))),
    ],
)
def test_products_of_64_bit_integers_are_sums_that_a_tpu_has(x, y, dimensions) -> None:
    first, second = (RANDOM.integers(-(2**40), 2**40, shape) for shape in (x, y))
    with jax.enable_x64(True):
        text, (dot, summed) = both(
            lambda a, b: matmul.general(a, b, dimensions, np.dtype(np.int64)), first, second
        )
    assert "dot_general" not in text
    np.testing.assert_array_equal(dot, summed)


def test_log_softmax_keeps_its_operand_and_nothing_of_its_size_beside_it() -> None:
    x = RANDOM.standard_normal((3, 9)).astype("float32")
    x[0, 2], x[1] = np.inf, -np.inf
    text, results = both(lambda a: softmax.log_softmax(a, 1, False), x)
    assert [
        line for line in text.splitlines() if "optimization_barrier" in line and "[3,1]" in line
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("sizes", [(8, 6), (9, 7)])
def test_averages_side_by_side_are_sums_of_a_dimension_and_their_gradient_repeats(sizes) -> None:
    x = RANDOM.standard_normal((2, 3, *sizes)).astype(np.float32)
    how = ([2, 3], [2, 3], [0, 0], False, True, None)
    forward, backward = (_row(average_pooling, f"avg_pool2d{end}") for end in ("", "_backward"))
    text, (slices, sums) = both(lambda v: forward(v, *how), x)
    assert text.count("reduce_sum") == 2
    np.testing.assert_allclose(sums, slices, rtol=1e-6, atol=1e-6)
    grad = RANDOM.standard_normal(slices.shape).astype(np.float32)
    text, results = both(lambda g, v: backward(g, v, *how), grad, x)
    assert " add" not in text
    (expected,) = jax.vjp(lambda v: forward(v, *how), x)[1](grad)
    for found in results:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("size", "features", "moves"), [(300, 64, True), (64, 300, False)])
def test_gradient_of_a_table_lies_as_results_of_a_program_do(size, features, moves) -> None:
    grad = RANDOM.standard_normal((7, features)).astype(np.float32)
    index = np.array([0, 5, 5, 63, 1, 2, 5], np.int32)
    text, (rows, moved) = both(
        lambda g, i: embedding.scattered(g, i, size, by_frequency=False), grad, index
    )
    assert ("layout_constraint" in text) == moves
    np.testing.assert_array_equal(moved, rows)
    with mxu.for_platform("tpu"):
        lowered = jax.jit(lambda g, i: embedding.scattered(g, i, size, by_frequency=False))
        assert "layout_mode" not in lowered.lower(grad, index).as_text()  # of the result


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 5), ("bfloat16", 5), ("float32", 128)])
def test_bias_is_added_to_rows_that_fill_no_lanes_before_these_are_split(dtype, columns) -> None:
    x, weight, bias = (
        RANDOM.standard_normal(shape).astype(jnp.dtype(dtype))
        for shape in ((6, 4), (4, columns), (columns,))
    )

    def layer(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return arithmetic.add(layout.reshaped(matmul.mm(x, weight), (2, 3, columns)), bias)

    text, results = both(layer, x, weight, bias)
    in_rows = any(f"[6,{columns}] = add" in line for line in text.splitlines())
    assert in_rows == (columns == 5)
    np.testing.assert_array_equal(*map(np.float32, results))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "bool"])
@pytest.mark.parametrize("which", ["max.dim", "min.dim"])
def test_extreme_and_its_place_are_found_in_one_pass_on_a_tpu(which, dtype) -> None:
    x = RANDOM.integers(0, 3, (5, 7, 4)).astype(jnp.dtype(dtype))
    if dtype in ("float32", "bfloat16"):
        x[0, 2:4, 1], x[1, :, 2], x[2, :, 0] = np.nan, np.inf, -np.inf
    function = _row(extrema, which)
    text, (several, once) = both(lambda v: function(v, 1), x)
    assert text.count("reduce[") == text.count(" reduce") == 1
    for one, other in zip(several, once, strict=True):
        np.testing.assert_array_equal(*(np.asarray(a, np.float64) for a in (one, other)))
    index = _row(extrema, "argmax" if which == "max.dim" else "argmin")
    _, (several, once) = both(lambda v: index(v, 1), x)
    np.testing.assert_array_equal(once, several)


def test_maximum_keeps_nan_without_a_look_for_it_on_a_tpu() -> None:
    x = np.array([[1, np.nan, 2], [3, 4, 5]], np.float32)
    text, (looked, plain) = both(lambda v: extrema.amax(v, 1), x)
    assert "reduce_or" not in text
    np.testing.assert_array_equal(plain, looked)
