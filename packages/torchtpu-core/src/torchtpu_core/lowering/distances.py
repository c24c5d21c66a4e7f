# SPDX-License-Identifier: Apache-2.0
"""Distances between all pairs of rows, forward and backward.

Legend: P and R rows of the two operands, M features.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.extrema import amax
from torchtpu_core.lowering.table import Lowering, native

#: ``torch.cdist``'s compute modes, and from how many rows on the default one multiplies.
_MM_IF_LARGE, _MM, _LARGE = 0, 1, 25


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def _reduced(size: jax.Array, p: float) -> jax.Array:
    """The p-norm over the last dimension of absolute differences."""
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return lax.sqrt(jnp.sum(size * size, axis=-1))
    if p == math.inf:
        return amax(size, -1) if size.shape[-1] else jnp.max(size, axis=-1, initial=0)
    return lax.pow(jnp.sum(lax.pow(size, size.dtype.type(p)), axis=-1), size.dtype.type(1 / p))


def _by_product(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """Euclidean distances from one matrix product."""

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("...pm,...rm->...pr", x, y, precision=mxu.precision())

    cross = mxu.multiply(product, x1, x2)
    first = jnp.sum(x1 * x1, axis=-1)[..., :, None]
    second = jnp.sum(x2 * x2, axis=-1)[..., None, :]
    squares = first + second - x1.dtype.type(2) * cross
    return lax.sqrt(jnp.maximum(squares, x1.dtype.type(0)))


def cdist_forward(
    x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None = None
) -> jax.Array:
    """`(..., P, M)`, `(..., R, M)` -> `(..., P, R)`."""
    a, b, mode = _compute(x1), _compute(x2), compute_mode or 0
    large = a.shape[-2] > _LARGE or b.shape[-2] > _LARGE
    if p == 2 and (mode == _MM or (mode == _MM_IF_LARGE and large)):
        return _by_product(a, b).astype(x1.dtype)
    return _reduced(lax.abs(a[..., :, None, :] - b[..., None, :, :]), p).astype(x1.dtype)


def _slopes(difference: jax.Array, distance: jax.Array, p: float) -> jax.Array:
    """The derivative of each distance by its difference; zero where there is none."""
    zero, size, sign = difference.dtype.type(0), lax.abs(difference), lax.sign(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return jnp.where(size == distance, sign, zero)
    safe = jnp.where(distance == 0, distance.dtype.type(1), distance)
    if p == 2:
        return jnp.where(distance == 0, zero, difference / safe)
    power = difference.dtype.type(p - 1)
    flat = (distance == 0) | ((difference == 0) & (p < 1))
    base = jnp.where(flat, difference.dtype.type(1), size)
    return jnp.where(flat, zero, sign * lax.pow(base, power) / lax.pow(safe, power))


def cdist_backward(
    grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array
) -> jax.Array:
    """Gradient of `x1`: `(..., P, R)` -> `(..., P, M)`."""
    if grad.size == 0:
        return jnp.zeros(x1.shape, x1.dtype)
    a, b, g = _compute(x1), _compute(x2), _compute(grad)
    difference = a[..., :, None, :] - b[..., None, :, :]
    slope = _slopes(difference, _compute(cdist)[..., None], p)
    return jnp.sum(slope * g[..., None], axis=-2).astype(x1.dtype)


def _pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The row numbers of all pairs i < j, in order."""
    first, second = np.triu_indices(rows, 1)
    return first.astype(np.int32), second.astype(np.int32)


def pdist_forward(self: jax.Array, p: float = 2.0) -> jax.Array:
    """`(P, M)` -> `(P * (P - 1) / 2,)`: the distances of rows i < j."""
    x = _compute(self)
    first, second = _pairs(x.shape[0])
    return _reduced(lax.abs(x[first] - x[second]), p).astype(self.dtype)


def pdist_backward(grad: jax.Array, self: jax.Array, p: float, pdist: jax.Array) -> jax.Array:
    x = _compute(self)
    if pdist.size == 0:
        return jnp.zeros(self.shape, self.dtype)
    first, second = _pairs(x.shape[0])
    slope = _slopes(x[first] - x[second], _compute(pdist)[:, None], p)
    part = slope * _compute(grad)[:, None]
    out = jnp.zeros(x.shape, x.dtype).at[first].add(part).at[second].add(-part)
    return out.astype(self.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::_cdist_forward", cdist_forward),
    native("aten::_cdist_backward", cdist_backward),
    native("aten::_pdist_forward", pdist_forward),
    native("aten::_pdist_backward", pdist_backward),
)
