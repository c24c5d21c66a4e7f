# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm, forward and backward, plain, safe and masked.

16-bit floats are computed in float32 and rounded once. Many classes that do not fill lanes are
computed in rows of two dimensions (`_in_rows`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import cut_rows, dtypes, mxu
from torchtpu_core.lowering.table import Lowering, native
from torchtpu_core.simulator.rates import LANES, SUBLANES

#: Classes from which rows of whole lanes waste less than an eighth.
_MANY = 8 * LANES


def _of_cut_rows(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function(arrays..., dim, last)` of matrices, before their rows were cut and joined."""

    @functools.wraps(function)
    def whole(*given: Any) -> jax.Array:
        *arrays, dim, last = given
        found = [rows for rows in map(cut_rows.of, arrays) if rows is not None]
        if len(found) < len(arrays) or dim % 2 != 1 or not found[0].matches(found[-1]):
            return function(*given)
        return found[0].taken(function(*(rows.whole for rows in found), -1, last))

    return whole


def _in_rows(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function(arrays..., dim, last)` on rows `(N, C)` of arrays `(..., T, C)`.

    XLA's TPU compiler lays logits `(N, C)` of a product out with tokens along the lanes where C
    is no multiple of 128 and N is, and copies each array between that and `(..., T, C)`.
    """

    @functools.wraps(function)
    def rows(*given: Any) -> jax.Array:
        *arrays, dim, last = given
        shape = arrays[0].shape
        many = len(shape) > 2 and shape[-1] >= _MANY and shape[-1] % LANES != 0
        if not many or shape[-2] % SUBLANES or dim % len(shape) != len(shape) - 1:
            return function(*given)
        flat = [array.reshape(-1, shape[-1]) for array in arrays]
        return function(*flat, 1, last).reshape(shape)

    return rows


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def _shifted(x: jax.Array, dim: int) -> jax.Array:
    """`x` minus its maximum along `dim`; an infinite maximum is kept, so that NaN arises."""
    return x - jnp.max(x, axis=dim, keepdims=True)


def softmax_core(x: jax.Array, dim: int) -> jax.Array:
    """Softmax along `dim` in the dtype of `x`."""
    if x.size == 0:
        return x
    if x.ndim == 0:
        return jnp.where(jnp.isfinite(x), x.dtype.type(1), x.dtype.type(np.nan))
    e = lax.exp(_shifted(x, dim))
    return e / jnp.sum(e, axis=dim, keepdims=True)


def _result(x: jax.Array, half_to_float: bool) -> np.dtype:
    return np.dtype(np.float32) if half_to_float else x.dtype


@_of_cut_rows
@_in_rows
def softmax(self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return softmax_core(_compute(self), dim).astype(_result(self, half_to_float))


@_of_cut_rows
@_in_rows
def log_softmax(self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    x = _compute(self)
    if x.ndim == 0:
        x = x - x
    elif x.size:
        top = jnp.max(x, axis=dim, keepdims=True)
        total = jnp.sum(lax.exp(x - top), axis=dim, keepdims=True)
        if mxu.lowers_for("tpu"):
            # So that `x - top` is not written beside `x` for both of its readers.
            top = lax.optimization_barrier(top)
        x = (x - top) - lax.log(total)
    return x.astype(_result(self, half_to_float))


@_of_cut_rows
@_in_rows
def softmax_backward(
    grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype
) -> jax.Array:
    grad, y = _compute(grad_output), _compute(output)
    product = grad * y
    total = product if y.ndim == 0 else jnp.sum(product, axis=dim, keepdims=True)
    return (product - y * total).astype(dtypes.to_numpy(input_dtype))


@_of_cut_rows
@_in_rows
def log_softmax_backward(
    grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype
) -> jax.Array:
    grad, y = _compute(grad_output), _compute(output)
    total = grad if y.ndim == 0 else jnp.sum(grad, axis=dim, keepdims=True)
    return (grad - lax.exp(y) * total).astype(dtypes.to_numpy(input_dtype))


def safe_softmax(self: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    """Softmax in which a slice of nothing but -inf gives zeros instead of NaN.

    See `attention._exponentials`.
    """
    result = self.dtype if dtype is None else dtypes.to_numpy(dtype)
    x = self.astype(dtypes.opmath(result))
    if x.size == 0 or x.ndim == 0:
        hidden = x == -np.inf
        return jnp.where(hidden, x.dtype.type(0), softmax_core(x, dim)).astype(result)
    limits, dims = jnp.finfo(x.dtype), (dim % x.ndim,)
    top = lax.reduce(x, limits.min, lax.max, dims)
    parts = lax.exp(x - jnp.expand_dims(top, dims))
    out = parts / jnp.expand_dims(lax.reduce(parts, limits.tiny, lax.add, dims), dims)
    return out.astype(result)


def _expanded_mask(mask: jax.Array, x: jax.Array, mask_type: int | None) -> jax.Array:
    """`mask` (True hides) in the shape of `x` `(B, H, T, S)`; 0 is `(T, S)`, 1 is `(B, S)`."""
    if mask_type == 0 and mask.ndim == 2:
        mask = mask[None, None, :, :]
    elif mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    return jnp.broadcast_to(mask, x.shape)


def masked_softmax(
    self: jax.Array, mask: jax.Array, dim: int | None = None, mask_type: int | None = None
) -> jax.Array:
    """Softmax over the places where `mask` is False; a slice hidden in whole gives zeros."""
    x = _compute(self)
    axis = x.ndim - 1 if dim is None else dim
    hidden = _expanded_mask(mask, x, mask_type)
    if x.size == 0:
        return self
    if x.ndim == 0:
        return jnp.where(hidden, x.dtype.type(0), softmax_core(x, 0)).astype(self.dtype)
    e = jnp.where(hidden, x.dtype.type(0), lax.exp(_shifted(jnp.where(hidden, -np.inf, x), axis)))
    total = jnp.sum(e, axis=axis, keepdims=True)
    whole = jnp.all(hidden, axis=axis, keepdims=True)
    return jnp.where(whole, x.dtype.type(0), e / total).astype(self.dtype)


def masked_softmax_backward(
    grad_output: jax.Array, output: jax.Array, mask: jax.Array, dim: int | None = None
) -> jax.Array:
    grad, y = _compute(grad_output), _compute(output)
    hidden = jnp.broadcast_to(mask, y.shape)
    product = jnp.where(hidden, y.dtype.type(0), grad * y)
    axis = y.ndim - 1 if dim is None else dim
    total = jnp.sum(product, axis=axis, keepdims=True) if y.ndim else product
    return jnp.where(hidden, y.dtype.type(0), product - y * total).astype(grad_output.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::_softmax", softmax),
    native("aten::_log_softmax", log_softmax),
    native("aten::_softmax_backward_data", softmax_backward),
    native("aten::_log_softmax_backward_data", log_softmax_backward),
    native("aten::_safe_softmax", safe_softmax),
    native("aten::_masked_softmax", masked_softmax),
    native("aten::_masked_softmax_backward", masked_softmax_backward),
)
