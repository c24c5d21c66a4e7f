# SPDX-License-Identifier: Apache-2.0
"""Linear layers over the pixels of an image multiply the image where a TPU would move it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import images, layout, mxu
from torchtpu_core.lowering.interpreter import run_overload
from torchtpu_core.runtime.tables import without_a_device

RANDOM = np.random.default_rng(0)
TABLES = without_a_device()
ATEN = torch.ops.aten


def _run(op: torch._ops.OpOverload, *args: object) -> jax.Array:
    made = run_overload(op, args, {}, TABLES)
    return made[0] if isinstance(made, tuple) else made


def _convolved(x: jax.Array, weight: jax.Array) -> jax.Array:
    n = x.ndim - 2
    how = ([1] * n, [0] * n, [1] * n, False, [0] * n, 1)
    return _run(ATEN.convolution.default, x, weight, None, *how)


def _network(x: jax.Array, weight: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """A convolution, a norm and two linear layers over its pixels, as PyTorch calls them."""
    made = _convolved(x, weight)
    made = _run(ATEN.permute.default, made, [0, *range(2, made.ndim), 1])
    made = _run(ATEN.native_layer_norm.default, made, [made.shape[-1]], None, None, 1e-5)
    shape = made.shape
    rows = _run(ATEN.view.default, made, [-1, shape[-1]])
    hidden = _run(ATEN.addmm.default, jnp.ones(up.shape[0], x.dtype), rows, up.T)
    hidden = _run(ATEN.gelu.default, _run(ATEN.view.default, hidden, [*shape[:-1], up.shape[0]]))
    rows = _run(ATEN.view.default, hidden, [-1, up.shape[0]])
    return _run(ATEN.view.default, _run(ATEN.mm.default, rows, down.T), shape)


def _arguments(sizes: tuple[int, ...], dtype: object) -> list[jax.Array]:
    shapes = (2, 3, *sizes), (16, 3, *[1] * len(sizes)), (32, 16), (16, 32)
    return [jnp.asarray(RANDOM.standard_normal(shape), dtype) for shape in shapes]


def _ranks(function: Callable[..., jax.Array], arguments: list[jax.Array]) -> list[int]:
    """Dimensions of the first operand of each product of a program for a TPU."""

    def remembered(*given: jax.Array) -> jax.Array:
        with layout.remembering():
            return function(*given)

    with mxu.for_platform("tpu"):
        equations = jax.make_jaxpr(remembered)(*arguments).eqns
    return [e.invars[0].aval.ndim for e in equations if e.primitive.name == "dot_general"]


@pytest.mark.parametrize(
    ("sizes", "dtype", "ranks"),
    [
        ((8, 16), jnp.bfloat16, [4, 4]),
        ((4, 4, 8), jnp.bfloat16, [5, 5]),
        ((8, 16), jnp.float32, [2, 2]),  # there is no rounding to save
        ((32,), jnp.bfloat16, [2, 2]),  # a wave
    ],
)
def test_linear_layers_over_pixels_multiply_the_image(sizes, dtype, ranks) -> None:
    assert _ranks(_network, _arguments(sizes, dtype)) == ranks


def test_products_of_images_are_those_of_their_rows() -> None:
    arguments = _arguments((8, 16), jnp.bfloat16)
    rows = _network(*arguments)
    with mxu.for_platform("tpu"), layout.remembering():
        pixels = _network(*arguments)
    np.testing.assert_allclose(
        np.asarray(pixels, np.float32), np.asarray(rows, np.float32), rtol=0.02, atol=0.02
    )


def test_linear_layers_over_positions_multiply_the_image() -> None:
    def mixed(x: jax.Array, weight: jax.Array, over: jax.Array) -> jax.Array:
        tokens = _run(ATEN.view.default, _convolved(x, weight), [2, 16, 8 * 16])
        rows = _run(ATEN.view.default, tokens, [2 * 16, 8 * 16])
        made = _run(ATEN.view.default, _run(ATEN.mm.default, rows, over), [2, 16, 8])
        back = _run(ATEN.permute.default, made, [0, 2, 1])
        rows = _run(ATEN.view.default, _run(ATEN.gelu.default, back), [2 * 8, 16])
        return _run(ATEN.mm.default, rows, over[:16])

    over = jnp.asarray(RANDOM.standard_normal((8 * 16, 8)), jnp.bfloat16)
    assert _ranks(mixed, [*_arguments((8, 16), jnp.bfloat16)[:2], over]) == [3, 3]


def test_gradients_of_a_mean_are_multiplied_as_the_image_they_are_of() -> None:
    def gradient(x: jax.Array, weight: jax.Array, over: jax.Array) -> jax.Array:
        image = _run(ATEN.permute.default, _convolved(x, weight), [0, 2, 3, 1])
        of_mean = _run(ATEN.sum.dim_IntList, image, [1, 2], True)
        spread = _run(ATEN.expand.default, of_mean, list(image.shape))
        return _run(ATEN.mm.default, _run(ATEN.view.default, spread, [-1, 16]), over)

    over = jnp.ones((16, 32), jnp.bfloat16)
    assert _ranks(gradient, [*_arguments((8, 16), jnp.bfloat16)[:2], over]) == [4]


def test_pixels_with_joined_features_are_rows() -> None:
    def joined(x: jax.Array, weight: jax.Array) -> jax.Array:
        made = _run(ATEN.permute.default, _convolved(x, weight), [0, 2, 1, 3])
        rows = _run(ATEN.view.default, made, [-1, 16 * 16])
        return _run(ATEN.mm.default, rows, jnp.ones((16 * 16, 8), x.dtype))

    assert _ranks(joined, _arguments((8, 16), jnp.bfloat16)[:2]) == [2]


@pytest.mark.parametrize(
    ("shape", "features"), [((2, 8 * 16, 4), 2), ((2 * 8, 16, 4), 2), ((2, 8, 64), None)]
)
def test_reshapes_keep_features_that_stay_one_dimension(shape, features) -> None:
    with layout.remembering():
        image = images.mark(jnp.zeros((2, 8, 16, 4)), 3)
        assert images.features_of(layout.reshaped(image, shape)) == features
        moved = layout.permuted(image, (0, 3, 1, 2))
        assert images.features_of(moved) == 1
    assert images.features_of(image) is None
