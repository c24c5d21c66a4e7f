# SPDX-License-Identifier: Apache-2.0
"""Images on a TPU take another form than on the CPU, with the same values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torchtpu_core.lowering import (
    average_pooling,
    convolution,
    convolution_products,
    mxu,
    padding,
    pooling,
    upsample,
)
from torchtpu_core.lowering.convolution_geometry import geometry_of

RANDOM = np.random.default_rng(0)


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
def test_pooling_is_by_operators_of_xla(both, sizes, kernel, stride, padding, ceil_mode) -> None:
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
    lowering_of, both, kind, sizes, align, dtype
) -> None:
    small, large = sizes
    rest = () if align is None else (align,)
    x = RANDOM.standard_normal((2, 3, *small)).astype(jnp.dtype(dtype))
    grad = RANDOM.standard_normal((2, 3, *large)).astype(jnp.dtype(dtype))
    forward, backward = (
        lowering_of(upsample, f"upsample_{kind}{end}") for end in ("", "_backward")
    )
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
def test_nearest_sizes_that_do_not_divide_are_no_sums_of_neighbours(
    lowering_of, both, size, out
) -> None:
    x = RANDOM.standard_normal((2, 3, size)).astype(np.float32)
    grad = RANDOM.standard_normal((2, 3, out)).astype(np.float32)
    forward, backward = (
        lowering_of(upsample, f"upsample_nearest1d{end}") for end in ("", "_backward")
    )
    _, (one, other) = both(lambda v: forward(v, (out,)), x)
    np.testing.assert_array_equal(one, other)
    _, (one, other) = both(lambda g: backward(g, (out,), x.shape), grad)
    np.testing.assert_array_equal(one, other)


def test_whole_numbers_are_interpolated_on_a_tpu_as_on_a_cpu(lowering_of, both) -> None:
    x = RANDOM.integers(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    for kind, rest in (("nearest2d", ()), ("bilinear2d", (False,))):
        forward = lowering_of(upsample, f"upsample_{kind}")
        _, (one, other) = both(lambda v, f=forward, r=rest: f(v, (9, 7), *r), x)
        np.testing.assert_array_equal(one, other)


def test_gradient_of_reflections_has_no_wider_copy_of_the_image(lowering_of, both) -> None:
    backward = lowering_of(padding, "reflection_pad2d_backward")
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
def test_strided_convolution_of_waves_is_of_their_phases(
    both, sizes, kernel, stride, padding
) -> None:
    g = geometry_of(len(sizes), stride, padding, [1], 1)
    x = RANDOM.standard_normal((2, 3, *sizes)).astype(np.float32)
    weight = RANDOM.standard_normal((4, 3, *kernel)).astype(np.float32)
    out = convolution_products._out_sizes(sizes, kernel, g)
    grad = RANDOM.standard_normal((2, 4, *out)).astype(np.float32)
    for function, given in (
        (lambda x, w: convolution_products.forward(x, w, g), (x, weight)),
        (lambda d, w: convolution_products.input_gradient(d, w, sizes, g), (grad, weight)),
        (lambda d, x: convolution_products.weight_gradient(d, x, kernel, g), (grad, x)),
    ):
        text, (plain, phases) = both(function, *given)
        assert f"window_strides={stride}" not in text
        assert f"dilation={stride}" not in text
        np.testing.assert_allclose(phases, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(8, 6), (9, 7)])
def test_averages_side_by_side_are_one_sum_and_their_gradient_repeats_what_is_rounded(
    lowering_of, both, sizes
) -> None:
    x = RANDOM.standard_normal((2, 3, *sizes)).astype(np.float32)
    how = ([2, 3], [2, 3], [0, 0], False, True, None)
    forward, backward = (
        lowering_of(average_pooling, f"avg_pool2d{end}") for end in ("", "_backward")
    )
    text, (slices, sums) = both(lambda v: forward(v, *how), x)
    assert text.count("reduce_sum") == 1
    np.testing.assert_allclose(sums, slices, rtol=1e-6, atol=1e-6)
    grad = RANDOM.standard_normal(slices.shape).astype(np.float32)
    text, results = both(lambda g, v: backward(g, v, *how), grad, x)
    assert " add" not in text
    rounded = [v.astype(jnp.bfloat16) for v in (grad, x)]
    text, halves = both(lambda g, v: backward(g, v, *how), *rounded)
    assert "bf16[2,3,4,2,2,3] = broadcast_in_dim" in text
    np.testing.assert_array_equal(*map(np.float32, halves))
    (expected,) = jax.vjp(lambda v: forward(v, *how), x)[1](grad)
    for found in results:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "platform", "count"), [(4, "tpu", 2), (4, "cpu", 0), (1, "tpu", 0), (256, "tpu", 0)]
)
def test_features_of_groups_are_joined_before_anybody_reads_them(groups, platform, count) -> None:
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    operands = (
        RANDOM.standard_normal(shape).astype(np.float32)
        for shape in ((2, 256, 6, 6), (256, 256 // groups, 3, 3))
    )

    def layer(x: jax.Array, weight: jax.Array) -> list[jax.Array | None]:
        made = convolution.convolution(x, weight, None, *how)
        grads = convolution.convolution_backward_overrideable(
            made, x, weight, *how, [True, True, False]
        )
        return [made, *grads[:2]]

    with mxu.for_platform(platform):
        text = jax.jit(layer).lower(*operands).as_text()
    assert text.count("stablehlo.optimization_barrier") == count


@pytest.mark.parametrize(
    ("features", "sizes", "groups", "transposed", "merged"),
    [
        ((64, 64), (7, 6), 16, False, 1),
        ((320, 320), (12, 12), 20, False, 4),
        ((48, 96), (12, 12), 6, False, 1),
        ((64, 64), (7, 6), 16, True, 1),
        ((195, 195), (15, 15), 3, False, 3),  # of 65 features: two do not fit
        ((256, 256), (5, 5), 16, False, 16),  # the weight is larger than the image
        ((32, 32), (7, 6), 32, False, 32),  # depthwise
        ((64, 64), (30,), 8, False, 1),
        ((32, 64), (4, 5, 6), 8, False, 1),
    ],
)
def test_narrow_groups_are_multiplied_as_one(
    both, features, sizes, groups, transposed, merged
) -> None:
    inside, outside = features
    rank = len(sizes)
    how = ([2, 1, 1][:rank], [1] * rank, [1] * rank, transposed, [0] * rank, groups)
    shape = (inside, outside // groups) if transposed else (outside, inside // groups)
    x = RANDOM.standard_normal((2, inside, *sizes)).astype(np.float32)
    weight = RANDOM.standard_normal((*shape, *[3] * rank)).astype(np.float32)

    def layer(x: jax.Array, weight: jax.Array) -> list[jax.Array | None]:
        made = convolution.convolution(x, weight, None, *how)
        grads = convolution.convolution_backward_overrideable(
            jnp.sin(made), x, weight, *how, [True, True, False]
        )
        return [made, *grads[:2]]

    text, (plain, wide) = both(layer, x, weight)
    assert f"feature_group_count={merged}\n" in text
    assert merged == groups or f"feature_group_count={groups}\n" not in text
    for one, other in zip(plain, wide, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
