# SPDX-License-Identifier: Apache-2.0
"""What is written for the layouts that XLA:TPU chooses, with the values of the CPU's form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torchtpu_core.lowering import (
    arithmetic,
    embedding,
    layout,
    matmul,
    mxu,
    random,
    reductions,
    shape,
    softmax,
)
from torchtpu_core.lowering.rng import Rng

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("shape", "once"), [((2, 3, 4), False), ((2, 2, 3, 4), True)])
def test_mask_of_probabilities_is_written_where_it_is_drawn(both, shape, once) -> None:
    row = next(row.function for row in random.TABLE if row.overload == "aten::native_dropout")
    state = np.array([3, 4], np.uint32)

    def dropped(x: jax.Array, state: jax.Array) -> jax.Array:
        rng = Rng(state[0].astype(jnp.uint64), state[1].astype(jnp.uint64))
        return row(x, 0.5, True, rng=rng)[0]

    with jax.enable_x64(True):
        text, (plain, kept) = both(dropped, np.ones(shape, np.float32), state)
    assert ("optimization_barrier" in text) == once
    np.testing.assert_array_equal(plain, kept)


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
def test_rows_that_do_not_fill_tiles_are_multiplied_before_they_are_joined(
    both, tokens, joins
) -> None:
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


def test_products_of_joined_batches_are_made_before_they_are_joined(both) -> None:
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


@pytest.mark.parametrize("given", [(8, 1), (1, 16), (1, 1), (8, 16)])
@pytest.mark.parametrize("swapped", [False, True])
def test_sum_with_a_broadcast_along_split_lanes_is_made_of_whole_lanes(
    both, given, swapped
) -> None:
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
    both, sizes, dims, made, function
) -> None:
    x = RANDOM.standard_normal(sizes).astype(np.float32)
    text, (cpu, tpu) = both(lambda x: function(x, dims), x)
    np.testing.assert_allclose(tpu, cpu, rtol=1e-6)
    assert (f"f32{made} = optimization_barrier" in text) == bool(made)
    assert text.count("optimization_barrier") == bool(made)


def test_log_softmax_keeps_its_operand_and_nothing_of_its_size_beside_it(both) -> None:
    x = RANDOM.standard_normal((3, 9)).astype("float32")
    x[0, 2], x[1] = np.inf, -np.inf
    text, results = both(lambda a: softmax.log_softmax(a, 1, False), x)
    assert [
        line for line in text.splitlines() if "optimization_barrier" in line and "[3,1]" in line
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("size", "features", "moves"), [(300, 64, True), (64, 300, False)])
def test_gradient_of_a_table_lies_as_results_of_a_program_do(both, size, features, moves) -> None:
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


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
@pytest.mark.parametrize(("dtype", "columns"), [("float32", 5), ("bfloat16", 5), ("float32", 128)])
def test_bias_is_added_to_rows_that_fill_no_lanes_before_these_are_split(
    both, dtype, columns, lead
) -> None:
    x, weight, bias = (
        RANDOM.standard_normal(shape).astype(jnp.dtype(dtype))
        for shape in ((6, 4), (4, columns), (*lead, columns))
    )

    def layer(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return arithmetic.add(layout.reshaped(matmul.mm(x, weight), (2, 3, columns)), bias)

    text, results = both(layer, x, weight, bias)
    in_rows = any(f"[6,{columns}] = add" in line for line in text.splitlines())
    assert in_rows == (columns == 5)
    np.testing.assert_array_equal(*map(np.float32, results))
