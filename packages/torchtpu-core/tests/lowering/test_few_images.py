# SPDX-License-Identifier: Apache-2.0
"""Norms of few images on a TPU: the values of the CPU's form, behind a barrier."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import copies, layout, mxu, normalization

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("sizes", "parted"),
    [
        ((2, 16, 12, 12), True),
        ((1, 16, 4, 4, 12), True),
        ((8, 16, 12, 12), False),  # enough images
        ((2, 16, 12, 8), False),  # no longer than there are parts
        ((2, 16, 12), True),
        ((2, 16, 8), False),
        ((2, 16), False),
    ],
)
def test_group_norm_puts_few_images_together(sizes, parted) -> None:
    x, grad = (RANDOM.standard_normal(sizes).astype(np.float32) for _ in range(2))
    weight, bias = (RANDOM.standard_normal(16).astype(np.float32) for _ in range(2))
    counts = (sizes[0], 16, math.prod(sizes[2:]), 4)

    def norm(x: jax.Array, grad: jax.Array) -> jax.Array:
        out, mean, rstd = normalization.native_group_norm(x, weight, bias, *counts, eps=1e-5)
        made = normalization.native_group_norm_backward(
            grad, x, mean, rstd, weight, *counts, output_mask=(True, True, True)
        )
        return jnp.concatenate([one.reshape(-1) for one in (out, *made)])

    expected = norm(x, grad)
    with mxu.for_platform("tpu"):
        text = str(jax.make_jaxpr(norm)(x, grad))
        found = jax.jit(norm)(x, grad)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert text.count("optimization_barrier") == 2 * parted  # forward and backward


def test_what_autocast_casts_for_the_norm_is_put_together_before() -> None:
    x = RANDOM.standard_normal((2, 16, 12, 12)).astype(jnp.bfloat16)

    def norm(x: jax.Array) -> jax.Array:
        with layout.remembering():
            wide = copies._to_copy(x, dtype=torch.float32)
            return normalization.native_group_norm(wide, None, None, 2, 16, 144, 4, eps=1e-5)[0]

    expected = norm(x)
    with mxu.for_platform("tpu"):
        text = str(jax.make_jaxpr(norm)(x))
        found = jax.jit(norm)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (barrier,) = (line for line in text.splitlines() if "optimization_barrier" in line)
    assert "bf16[2,16,12,12]" in barrier and found.dtype == jnp.float32
