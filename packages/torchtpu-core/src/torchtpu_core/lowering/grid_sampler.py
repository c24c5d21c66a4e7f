# SPDX-License-Identifier: Apache-2.0
"""Sampling at the points of a grid, forward and backward, and the grid of an affine map.

A backward pass is JAX's derivative of the forward, which is written so that the
derivative at a clipped or reflected border is PyTorch's. Interpolation is 0 linear,
1 nearest, 2 cubic; padding is 0 zeros, 1 border, 2 reflection.

Legend: N batch, C channels, S input spatial, O output spatial, P points of one sample.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.table import Lowering, native
from torchtpu_core.lowering.upsample import cubic_weight

_NEAREST, _CUBIC = 1, 2
_ZEROS, _BORDER = 0, 1

#: A size of an image: known while tracing, or a 0-d integer of the program.
Size: TypeAlias = "int | jax.Array"


class Planes(NamedTuple):
    """Images as rows of channels.

    Attributes:
        values: `(N, S, C)`.
        room: how many places each dimension of S has.
        sizes: how many of them are of the images.
    """

    values: jax.Array
    room: Sequence[int]
    sizes: Sequence[Size]


def _number(size: Size, dtype: np.dtype) -> jax.Array:
    return jnp.asarray(size, dtype)


def _unnormalized(x: jax.Array, size: Size, align: bool) -> jax.Array:
    """From -1..1 to positions in the input."""
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    if align:
        return (x + one) * half * _number(size - 1, x.dtype)
    return ((x + one) * _number(size, x.dtype) - one) * half


def _clipped(x: jax.Array, size: Size) -> jax.Array:
    """`x` within the input; its derivative is zero on the border too."""
    low, high = x.dtype.type(0), _number(size - 1, x.dtype)
    return jnp.where(x >= high, high, jnp.where(x > low, x, low))


def _reflected(x: jax.Array, size: Size, align: bool) -> jax.Array:
    low = x.dtype.type(0.0 if align else -0.5)
    true_span = _number(size - 1 if align else size, x.dtype)
    span = jnp.maximum(true_span, 1)  # one place, its centre on both edges
    away = x - low
    away = jnp.where(away < 0, -away, away)
    flips = lax.floor(lax.stop_gradient(away) / span)
    extra = away - flips * span
    odd = lax.rem(flips, x.dtype.type(2)) != 0
    inside = jnp.where(odd, span - extra, extra) + low
    return jnp.where(true_span == 0, x.dtype.type(0), inside)


def _padded(x: jax.Array, size: Size, padding: int, align: bool) -> jax.Array:
    """A position brought into the input as the padding mode says."""
    if padding == _ZEROS:
        return x
    return _clipped(x if padding == _BORDER else _reflected(x, size, align), size)


def _pick(planes: Planes, at: Sequence[jax.Array]) -> jax.Array:
    """Values at whole positions `(N, P)` per dimension -> `(N, P, C)`; zero outside."""
    inside, flat = None, None
    for position, size, room in zip(at, planes.sizes, planes.room, strict=True):
        ok = (position >= 0) & (position < _number(size, position.dtype))
        index = jnp.where(ok, position, 0).astype(np.int32)
        inside = ok if inside is None else inside & ok
        flat = index if flat is None else flat * np.int32(room) + index
    assert flat is not None and inside is not None
    batch = lax.broadcasted_iota(np.int32, flat.shape, 0)
    values = planes.values.at[batch, flat].get(mode="promise_in_bounds")
    return jnp.where(inside[..., None], values, values.dtype.type(0))


def _linear(planes: Planes, at: Sequence[jax.Array]) -> jax.Array:
    lows = [lax.stop_gradient(lax.floor(p)) for p in at]
    total = []
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight, places = None, []
        for p, low, up in zip(at, lows, corner, strict=True):
            part = p - low if up else low + p.dtype.type(1) - p
            weight = part if weight is None else weight * part
            places.append(low + p.dtype.type(up))
        assert weight is not None
        total.append(_pick(planes, places) * weight[..., None])
    return functools.reduce(lax.add, total)


def _cubic(planes: Planes, at: Sequence[jax.Array], padding: int, align: bool) -> jax.Array:
    lows = [lax.stop_gradient(lax.floor(p)) for p in at]
    choices = []
    for p, low, size in zip(at, lows, planes.sizes, strict=True):
        part, one = p - low, p.dtype.type(1)
        distances = (part + one, part, one - part, p.dtype.type(2) - part)
        row = []
        for k, (distance, far) in enumerate(zip(distances, (1, 0, 0, 1), strict=True)):
            weight = cubic_weight(distance, p.dtype.type(-0.75))[far]
            place = lax.stop_gradient(_padded(low + p.dtype.type(k - 1), size, padding, align))
            row.append((place, weight))
        choices.append(row)
    total = []
    for combination in itertools.product(*choices):
        weight = functools.reduce(lax.mul, [w for _, w in combination])
        places = [place for place, _ in combination]
        total.append(_pick(planes, places) * weight[..., None])
    return functools.reduce(lax.add, total)


def sampled(
    x: jax.Array,
    grid: jax.Array,
    interpolation: int,
    padding: int,
    align: bool,
    sizes: Sequence[Size] | None = None,
) -> jax.Array:
    """`(N, C, *S)`, `(N, *O, len(S))` -> `(N, C, *O)`; the grid's last coordinate comes first.

    Args:
        x: images.
        grid: where to look, from -1 to 1.
        interpolation: see above.
        padding: see above.
        align: whether -1 and 1 are the centres of the outermost elements, or their edges.
        sizes: of the images, which lie in front where `x` has more room; None: those of `x`.
    """
    batch, channels, *room = x.shape
    outs = grid.shape[1:-1]
    values = jnp.moveaxis(x, 1, -1).reshape((batch, math.prod(room), channels))
    planes = Planes(values, room, room if sizes is None else sizes)
    points = grid.reshape((batch, math.prod(outs), len(room)))
    at = [_unnormalized(points[..., -1 - i], size, align) for i, size in enumerate(planes.sizes)]
    if interpolation == _CUBIC:
        out = _cubic(planes, at, padding, align)
    else:
        at = [_padded(p, size, padding, align) for p, size in zip(at, planes.sizes, strict=True)]
        if interpolation == _NEAREST:
            at = [lax.stop_gradient(lax.round(p, lax.RoundingMethod.TO_NEAREST_EVEN)) for p in at]
            out = _pick(planes, at)
        else:
            out = _linear(planes, at)
    return jnp.moveaxis(out.reshape((batch, *outs, channels)), -1, 1)


def grid_sampler(
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> jax.Array:
    """`(N, C, *S)`, `(N, *O, D)` in -1..1 -> `(N, C, *O)`."""
    compute = dtypes.opmath(input.dtype)
    x, points = input.astype(compute), grid.astype(compute)
    out = sampled(x, points, interpolation_mode, padding_mode, align_corners)
    return out.astype(input.dtype)


def grid_sampler_backward(
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool] = (True, True),
) -> tuple[jax.Array | None, jax.Array | None]:
    compute = dtypes.opmath(input.dtype)

    def run(x: jax.Array, points: jax.Array) -> jax.Array:
        return sampled(x, points, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(run, input.astype(compute), grid.astype(compute))
    d_input, d_grid = pull(grad_output.astype(compute))
    return (
        d_input.astype(input.dtype) if output_mask[0] else None,
        d_grid.astype(grid.dtype) if output_mask[1] else None,
    )


def affine_grid_generator(theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    """`(N, D, D+1)` -> `(N, *size[2:], D)`: the affine image of each output position."""
    compute = dtypes.opmath(theta.dtype)
    outs = size[2:]
    axes = []
    for n in outs:
        span = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
        axes.append(span if align_corners else span * ((n - 1) / n))
    grids = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*reversed(grids), np.ones(tuple(outs))], axis=-1)
    flat = jnp.asarray(base.reshape((-1, len(outs) + 1)).astype(compute))
    out = jnp.einsum("pk,ndk->npd", flat, theta.astype(compute), precision=lax.Precision.HIGHEST)
    return out.reshape((size[0], *outs, len(outs))).astype(theta.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::grid_sampler_2d", grid_sampler),
    native("aten::grid_sampler_3d", grid_sampler),
    native("aten::grid_sampler_2d_backward", grid_sampler_backward),
    native("aten::grid_sampler_3d_backward", grid_sampler_backward),
    native("aten::_grid_sampler_2d_cpu_fallback", grid_sampler),
    native("aten::_grid_sampler_2d_cpu_fallback_backward", grid_sampler_backward),
    native("aten::affine_grid_generator", affine_grid_generator),
)
