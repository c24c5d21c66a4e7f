# SPDX-License-Identifier: Apache-2.0
"""Programs of several convolutions hold their images channels last, and compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from torchtpu_core.lowering import channel_order

Params = list[jax.Array]


def _conv(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    spatial = w.ndim - 2
    names = ("NCDHW", "OIDHW", "NCDHW") if spatial == 3 else ("NCHW", "OIHW", "NCHW")
    pads = [(k // 2, k // 2) for k in w.shape[2:]]
    return lax.conv_general_dilated(
        x, w, (stride,) * spatial, pads, dimension_numbers=names, feature_group_count=groups
    )


def _norm(x: jax.Array) -> jax.Array:
    axes = (0, *range(2, x.ndim))
    lane = (1, -1) + (1,) * (x.ndim - 2)
    mean, square = x.mean(axes), (x * x).mean(axes)
    return (x - mean.reshape(lane)) * lax.rsqrt(square - mean**2 + 1e-3).reshape(lane)


def _residual(p: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(_norm(_conv(x, p[0])))
    x = jax.nn.relu(x + _norm(_conv(x, p[1])))
    return _conv(x, p[1], stride=2).mean((2, 3))


def _pools(p: Params, x: jax.Array) -> jax.Array:
    x = jnp.tanh(_conv(_conv(x, p[0]), p[1]))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "VALID")
    x = lax.reduce_window(_conv(x, p[1]), 0.0, lax.add, (1, 1, 2, 3), (1, 1, 1, 2), "SAME")
    return x.max(1)


def _mixed(p: Params, x: jax.Array) -> jax.Array:
    mask = jnp.arange(math.prod(x.shape)).reshape(x.shape) % 3 > 0
    first = _conv(jnp.where(mask, x, 0.0), p[0])
    wide = jnp.concatenate([first, first[:, ::-1, :, ::-1]], axis=1)
    image = lax.dynamic_slice(wide, (0, 2, 1, 0), (x.shape[0], p[1].shape[1], 6, 5))
    image = _conv(jnp.pad(image, ((0, 0), (0, 0), (2, 1), (0, 3))), p[1])
    rows = image.reshape(image.shape[0], -1)
    flipped = jnp.einsum("nchw,kcij->nkhw", image, p[1])
    return rows.sum() + _conv(flipped, p[1]).transpose(2, 0, 3, 1)[1:3]


def _volume(p: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.silu(_conv(_conv(x, p[0]), p[1]))
    return _conv(x, p[1], stride=2).sum((2, 4))


def _filled(p: Params, x: jax.Array) -> jax.Array:
    x = _conv(_conv(x, p[0]), p[1])
    whole = lax.broadcast_in_dim(3, x.shape, ()) * lax.broadcast_in_dim(x[0, 0, 0, 0], x.shape, ())
    return _conv(whole + lax.abs(lax.broadcast_in_dim(-2.0, x.shape, ())) * x, p[1]).sum((2, 3))


CASES: dict[str, tuple[Callable[[Params, jax.Array], jax.Array], int]] = {
    "residual": (_residual, 2),
    "pools": (_pools, 2),
    "mixed": (_mixed, 2),
    "volume": (_volume, 3),
    "filled": (_filled, 2),
}


def _operands(spatial: int) -> tuple[Params, jax.Array]:
    draw = np.random.default_rng(0)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    kernel = (3,) * spatial
    return [array(6, 3, *kernel), array(6, 6, *kernel)], array(2, 3, *(8, 9, 7)[:spatial])


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_rewriting_changes_no_value(case: str, with_gradient: bool) -> None:
    """Forward and backward, through every kind of operation that has a rule."""
    function, spatial = CASES[case]
    operands = _operands(spatial)

    def run(p: Params, x: jax.Array) -> list[jax.Array]:
        if not with_gradient:
            return [function(p, x)]
        return jax.tree.leaves(jax.grad(lambda *a: jnp.sin(function(*a)).sum(), (0, 1))(p, x))

    rewritten = channel_order.channels_last(jax.make_jaxpr(run)(*operands))
    assert rewritten is not None
    got = jax.jit(rewritten)(*jax.tree.leaves(operands))
    for mine, wanted in zip(got, jax.jit(run)(*operands), strict=True):
        scale = float(jnp.abs(wanted).max())
        np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=2e-5 * scale)


def test_no_image_is_transposed_between_convolutions() -> None:
    """A training step of a residual network keeps one order from its first to its last image."""
    operands = _operands(2)

    def run(p: Params, x: jax.Array) -> list[jax.Array]:
        return jax.grad(lambda p: _residual(p, x).sum())(p)

    closed = jax.make_jaxpr(run)(*operands)
    rewritten = channel_order.channels_last(closed)
    assert rewritten is not None
    jaxpr = jax.make_jaxpr(rewritten)(*jax.tree.leaves(operands))
    transposed = [e.outvars[0].aval.shape for e in jaxpr.eqns if e.primitive.name == "transpose"]
    assert transposed, "the gradients leave the program in PyTorch's order"
    assert all(shape[2:] in ((3, 3), (1, 1)) or shape[1:3] == (1, 1) for shape in transposed)


def test_a_program_of_one_operator_is_left_alone() -> None:
    """One convolution and its gradient gain nothing."""
    (first, _), x = _operands(2)
    step = jax.make_jaxpr(jax.grad(lambda w: _conv(x, w).sum()))(first)
    assert channel_order.channels_last(step) is None


@pytest.mark.parametrize("dtype", [jnp.int16, jnp.int32])
def test_bits_of_an_image_may_be_read_as_another_dtype(dtype: jnp.dtype) -> None:
    """A narrower dtype adds a dimension to the image's; small whole numbers are exact."""
    (first, weight), x = jax.tree.map(jnp.round, _operands(2))

    def run(first: jax.Array, weight: jax.Array, x: jax.Array) -> jax.Array:
        image = _conv(_conv(_conv(x, first), weight), weight)
        return lax.bitcast_convert_type(image + 0.5, dtype)

    rewritten = channel_order.channels_last(jax.make_jaxpr(run)(first, weight, x))
    assert rewritten is not None
    np.testing.assert_array_equal(rewritten(first, weight, x)[0], run(first, weight, x))


def test_grouped_convolutions_agree() -> None:
    """Groups are counted along the channels wherever they stand."""
    (_, weight), _ = _operands(2)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 12, 5, 5)), jnp.float32)

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        w = jnp.concatenate([w, w])
        return _conv(_conv(_conv(x, w, groups=2), w, groups=2), w, groups=2)

    rewritten = channel_order.channels_last(jax.make_jaxpr(run)(weight, x))
    assert rewritten is not None
    np.testing.assert_allclose(rewritten(weight, x)[0], run(weight, x), rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize(("features", "copies"), [(256, 2), (16, 0)])
def test_large_gradients_of_weights_are_transposed_once(features: int, copies: int) -> None:
    """For an optimizer that reads them twice XLA:CPU would transpose them in each of its loops."""

    def step(p: Params, averages: Params, x: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        gradients = [
            jnp.swapaxes(_conv(jnp.swapaxes(x, 0, 1), jnp.swapaxes(_conv(x, w), 0, 1)), 0, 1)
            for w in p
        ]
        return [(m * 0.9 + g, m * 0.99 + g * g) for g, m in zip(gradients, averages, strict=True)]

    weights = [jnp.full((features, features, 3, 3), 0.01) for _ in range(2)]
    image = jnp.linspace(-1.0, 1.0, features * 18).reshape((2, features, 3, 3))
    closed = jax.make_jaxpr(step)(weights, weights, image)
    reordered = channel_order.channels_last(closed)
    assert reordered is not None
    operands = (*weights, *weights, image)
    assert str(jax.make_jaxpr(reordered)(*operands)).count("layout_constraint") == copies
    for got, wanted in zip(
        jax.jit(reordered)(*operands),
        jax.tree.leaves(jax.jit(step)(weights, weights, image)),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
