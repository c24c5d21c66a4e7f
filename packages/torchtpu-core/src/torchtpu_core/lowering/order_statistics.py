# SPDX-License-Identifier: Apache-2.0
"""Values by rank: median, k-th value, mode.

A rank is found by bisection over the bits of an order-preserving integer key, one
counting pass over the data for each bit. XLA:CPU counts a million float32 elements
32 times in a few milliseconds and sorts them in 200. Only the mode sorts.

NaN ranks last, as in PyTorch. Among equal values the index is that of the first;
CPU PyTorch leaves open which it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import constant, is_bool, isnan
from torchtpu_core.lowering.extrema import position
from torchtpu_core.lowering.reductions import axes_of, keep
from torchtpu_core.lowering.table import Lowering, native

Ranked = tuple[jax.Array, jax.Array]


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")


def _key_of(x: jax.Array) -> jax.Array:
    """Unsigned integers in the order of `x`; every NaN has the largest."""
    if is_bool(x):
        return x.astype(np.uint8)
    bits = lax.bitcast_convert_type(x, _unsigned(x.dtype))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return bits
    sign = constant(1 << (8 * x.dtype.itemsize - 1), bits)
    if not dtypes.is_floating(x.dtype):
        return bits ^ sign
    ordered = jnp.where(bits >= sign, ~bits, bits | sign)
    return jnp.where(isnan(x), ~constant(0, bits), ordered)


def _value_of(key: jax.Array, dtype: np.dtype) -> jax.Array:
    """The inverse of `_key_of`."""
    if dtype == np.bool_ or jnp.issubdtype(dtype, jnp.unsignedinteger):
        return key.astype(dtype)
    sign = constant(1 << (8 * np.dtype(dtype).itemsize - 1), key)
    floating = dtypes.is_floating(dtype)
    key = jnp.where(key >= sign, key ^ sign, ~key) if floating else key ^ sign
    return lax.bitcast_convert_type(key, dtype)


def by_rank(x: jax.Array, rank: jax.Array | int, dim: int) -> Ranked:
    """The element of 0-based `rank` along `dim` and the index of the first equal to it.

    Args:
        x: any real dtype, at least one dimension.
        rank: int32, broadcastable to `x` with `dim` of length 1.
        dim: non-negative; it is removed from the results.
    """
    key = _key_of(x)
    bits = 8 * key.dtype.itemsize
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]

    def step(i: jax.Array, found: jax.Array) -> jax.Array:
        bit = lax.shift_left(constant(1, key), (bits - 1 - i).astype(key.dtype))
        candidate = found | bit
        below = lax.reduce_sum((key < candidate).astype(np.int32), (dim,)).reshape(shape)
        return jnp.where(below <= rank, candidate, found)

    found = lax.fori_loop(0, bits, step, jnp.zeros(shape, key.dtype))
    index = position(key == found, dim, largest=True)
    return _value_of(found.reshape(index.shape), x.dtype), index


def _kept(ranked: Ranked, self: jax.Array, dim: int, keepdim: bool) -> Ranked:
    axes = axes_of(self, dim)
    return keep(ranked[0], self, axes, keepdim), keep(ranked[1], self, axes, keepdim)


def _kthvalue(self: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    if self.ndim == 0:
        return self, jnp.zeros((), np.int64)
    return _kept(by_rank(self, k - 1, dim % self.ndim), self, dim, keepdim)


def _median_along(ignore_nan: bool) -> Callable[..., Ranked]:
    """The lower median along `dim`; a NaN wins unless `ignore_nan`."""

    def median(self: jax.Array, dim: int, keepdim: bool = False) -> Ranked:
        if self.ndim == 0:
            return self, jnp.zeros((), np.int64)
        axis = dim % self.ndim
        last = self.shape[axis] - 1
        if not dtypes.is_floating(self.dtype):
            return _kept(by_rank(self, last // 2, axis), self, dim, keepdim)
        nans = lax.reduce_sum(isnan(self).astype(np.int32), (axis,))
        nans = jnp.expand_dims(nans, axis)
        if ignore_nan:
            rank = lax.max(last - nans, constant(0, nans)) // 2
        else:
            rank = jnp.where(nans > 0, last, last // 2).astype(np.int32)
        return _kept(by_rank(self, rank, axis), self, dim, keepdim)

    return median


def _median(ignore_nan: bool) -> Callable[[jax.Array], jax.Array]:
    along = _median_along(ignore_nan)

    def median(self: jax.Array) -> jax.Array:
        if self.size == 0:
            floating = dtypes.is_floating(self.dtype)
            return constant(math.nan if floating else np.iinfo(self.dtype).min, self)
        return along(self.reshape(-1), 0)[0]

    return median


def _mode(self: jax.Array, dim: int = -1, keepdim: bool = False) -> Ranked:
    if self.ndim == 0:
        return self, jnp.zeros((), np.int64)
    return _kept(most_frequent(self, dim % self.ndim), self, dim, keepdim)


def most_frequent(x: jax.Array, dim: int, counted: jax.Array | None = None) -> Ranked:
    """The most frequent value along `dim`, the smallest of equally frequent ones.

    Args:
        x: any real dtype, at least one dimension.
        dim: non-negative; it is removed from the results.
        counted: bool, broadcastable to `x`: which elements there are; None: all.
    """
    index = lax.broadcasted_iota(np.int64, x.shape, dim)
    keys = [_key_of(jnp.where(x == 0, constant(0, x), x))]  # the zeros of both signs are equal
    if counted is not None:
        keys.insert(0, jnp.broadcast_to(~counted, x.shape))
    *keys, order = lax.sort((*keys, index), dimension=dim, num_keys=len(keys), is_stable=True)
    key, size = keys[-1], x.shape[dim]
    before = lax.slice_in_dim(key, 0, size - 1, axis=dim)
    after = lax.slice_in_dim(key, 1, size, axis=dim)
    starts = lax.concatenate([lax.slice_in_dim(index, 0, 1, axis=dim) == 0, before != after], dim)
    run_start = lax.cummax(jnp.where(starts, index, constant(0, index)), axis=dim)
    length = index - run_start
    if counted is not None:  # absent elements are sorted behind all others
        length = jnp.where(keys[0], constant(-1, length), length)
    # The last element of the first longest run.
    best = jnp.expand_dims(position(length, dim, largest=True), dim)
    chosen = index == best
    found = lax.reduce_max(jnp.where(chosen, key, constant(0, key)), (dim,))
    place = lax.reduce_max(jnp.where(chosen, order, constant(0, order)), (dim,))
    return _value_of(found, x.dtype), place


TABLE: tuple[Lowering, ...] = (
    native("aten::kthvalue", _kthvalue),
    native("aten::median", _median(False)),
    native("aten::median.dim", _median_along(False)),
    native("aten::nanmedian", _median(True)),
    native("aten::nanmedian.dim", _median_along(True)),
    native("aten::mode", _mode),
)
