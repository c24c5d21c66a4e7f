# SPDX-License-Identifier: Apache-2.0
"""Residual streams of 16 bits are written between their sums on a TPU; rows go through barriers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torchtpu_core.lowering import arithmetic, convolution, layout, mxu
from torchtpu_core.runtime import recomputation

TOKENS = (2, 16, 24)
#: What goes through a barrier, by its shape in a program's text.
BARRIERS = re.compile(r"optimization_barrier[^:]*: tensor<([\dx]+)x\w+>")


def stream(x: jax.Array, *others: jax.Array) -> jax.Array:
    for other in others:
        x = arithmetic.add(x, other)
    return x


def barriers(platform: str, shape: Sequence[int], dtype: str, operands: int = 4) -> list[str]:
    """The shapes that a stream of sums takes through barriers."""
    one = jax.ShapeDtypeStruct(tuple(shape), dtype)
    with mxu.for_platform(platform), layout.remembering():
        return BARRIERS.findall(
            jax.jit(lambda *all: stream(*all)).lower(*[one] * operands).as_text()
        )


def test_stream_of_sums_is_written_between_them_as_rows():
    assert barriers("tpu", TOKENS, "bfloat16") == ["32x24"] * 2
    assert barriers("tpu", TOKENS, "float16", operands=2) == []


@pytest.mark.parametrize(
    ("platform", "shape", "dtype"),
    [
        ("cpu", TOKENS, "bfloat16"),
        ("tpu", TOKENS, "float32"),
        ("tpu", (2, 50, 24), "bfloat16"),  # rows of 50 tokens fill no tiles
        ("tpu", (32, 24), "bfloat16"),
        ("tpu", TOKENS, "int16"),
    ],
)
def test_other_sums_are_left_to_the_compiler(platform, shape, dtype):
    assert barriers(platform, shape, dtype) == []


def test_values_of_a_stream_are_those_without_barriers():
    random = np.random.default_rng(0)
    parts = [jnp.asarray(random.standard_normal(TOKENS), "bfloat16") for _ in range(4)]
    with mxu.for_platform("tpu"), layout.remembering():
        done = stream(*parts)
    assert done.dtype == jnp.bfloat16
    np.testing.assert_array_equal(done, parts[0] + parts[1] + parts[2] + parts[3])


def test_recomputation_reads_tokens_as_rows_and_images_as_they_are():
    def function(x: jax.Array, image: jax.Array, after: jax.Array) -> list[jax.Array]:
        return recomputation.late([x, image], [after])

    shapes = [TOKENS, (2, 8, 16, 16), TOKENS]
    with layout.remembering():
        text = str(jax.make_jaxpr(function)(*map(jnp.zeros, shapes)))
    assert re.search(r"f32\[32,24\] \w+:f32\[2,8,16,16\] \w+:f32\[32,24\] = optimization_ba", text)
    x, image, after = (jnp.full(shape, 2.0) for shape in shapes)
    for value, made in zip((x, image), function(x, image, after), strict=True):
        np.testing.assert_array_equal(value, made)


def test_what_a_convolution_over_time_made_is_no_rows():
    with layout.remembering():
        wave, weight = jnp.zeros((2, 16, 64)), jnp.zeros((16, 16, 3))
        made = convolution.convolution(
            wave, weight, None, [1], [1], [1], transposed=False, output_padding=[0], groups=1
        )
        assert layout.as_rows(made).shape == made.shape == (2, 16, 64)
        assert layout.as_rows(jnp.zeros((2, 16, 32))).shape == (32, 32)
    assert layout.as_rows(wave).shape == (32, 64)


def convolved(wave: jax.Array, weight: jax.Array) -> jax.Array:
    return convolution.convolution(
        wave, weight, None, [1], [1], [1], transposed=False, output_padding=[0], groups=1
    )


def tokens_and_back(wave: jax.Array, weight: jax.Array) -> jax.Array:
    tokens = layout.permuted(convolved(wave, weight), (0, 2, 1))
    return layout.permuted(jnp.tanh(tokens), (0, 2, 1))


@pytest.mark.parametrize(
    ("platform", "time", "shapes"),
    [("tpu", 16, ["32x24"] * 2), ("tpu", 50, ["2x50x24"] * 2), ("cpu", 16, [])],
)
def test_tokens_of_a_wave_lie_in_rows_of_their_own(platform, time, shapes):
    operands = jnp.ones((2, 8, time)), jnp.ones((24, 8, 3))
    with mxu.for_platform(platform), layout.remembering():
        lowered = jax.jit(lambda *all: tokens_and_back(*all)).lower(*operands)
    assert BARRIERS.findall(lowered.as_text()) == shapes
    expected = jnp.tanh(convolved(*operands))
    np.testing.assert_allclose(lowered.compile()(*operands), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("platform", "windows", "tokens", "barriers"),
    [
        ("tpu", (2, 4, 6, 128), (2, 24, 128), ["48x128"] * 2),
        ("tpu", (2, 2, 4, 3, 3, 128), (2, 72, 128), ["144x128"] * 2),
        ("tpu", (2, 3, 8, 128), (2, 24, 128), []),  # rows of windows fill tiles
        ("tpu", (2, 5, 5, 128), (2, 25, 128), []),  # those of tokens do not
        ("tpu", (2, 24, 1, 128), (2, 24, 128), []),
        ("cpu", (2, 4, 6, 128), (2, 24, 128), []),
    ],
)
def test_layers_of_tokens_are_not_computed_in_the_shape_of_windows(
    platform, windows, tokens, barriers
):
    def layers(x: jax.Array) -> jax.Array:
        return layout.reshaped(jnp.tanh(layout.reshaped(jnp.exp(x), tokens)), windows)

    x = jnp.linspace(-1, 1, math.prod(windows)).reshape(windows)
    with mxu.for_platform(platform), layout.remembering():
        lowered = jax.jit(layers).lower(x)
    assert BARRIERS.findall(lowered.as_text()) == barriers
    np.testing.assert_allclose(lowered.compile()(x), jnp.tanh(jnp.exp(x)), rtol=1e-6)


def test_other_transposes_are_left_to_the_compiler():
    def function(x: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        made = convolved(*operands)
        return [made, layout.permuted(x, (0, 2, 1)), layout.permuted(made, (1, 0, 2))]

    operands = jnp.ones((2, 8, 8)), jnp.ones((2, 8, 16)), jnp.ones((24, 8, 3))
    with mxu.for_platform("tpu"), layout.remembering():
        assert BARRIERS.findall(jax.jit(function).lower(*operands).as_text()) == []
