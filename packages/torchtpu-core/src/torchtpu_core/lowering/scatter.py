# SPDX-License-Identifier: Apache-2.0
"""Lowerings of scatter, scatter_add, scatter_reduce, index_reduce and histograms.

Where several updates meet in one element, a plain scatter keeps one of them (which
one is not defined, as in PyTorch); the reductions follow PyTorch's rules for
``include_self``, means of integers (floor) and NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import addressing, checks, dims, dtypes, promotion, refused_shapes
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.table import Lowering, composite, native

#: Dtypes whose values `bincount` counts.
_COUNTED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LEGACY_NAMES = {"add": "sum", "multiply": "prod"}


def _located(
    self: jax.Array, dim: int, index: jax.Array
) -> tuple[jax.Array, addressing.Put, tuple[int, ...]]:
    """`self` at least 1-d, a writer to the elements `index` names, and the index's shape."""
    x, where = dims.at_least_1d(self), dims.at_least_1d(index)
    dim = dims.wrap(dim, x.ndim)
    what = addressing.out_of_bounds(dim, x.shape[dim])
    where = addressing.checked(where, x.shape[dim], error=RuntimeError, what=what)
    return x, addressing.put_elements(dim, where), where.shape


def _trimmed(src: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The leading part of `src` that has the shape of the index."""
    src = dims.at_least_1d(src)
    return src if src.shape == shape else lax.slice(src, (0,) * src.ndim, shape)


def _scatter_src(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    if index.size == 0:
        return self
    x, put, shape = _located(self, dim, index)
    return lax.reshape(put(x, _trimmed(src, shape), "set"), self.shape)


def _scatter_value(self: jax.Array, dim: int, index: jax.Array, value: Operand) -> jax.Array:
    if index.size == 0:
        return self
    x, put, _ = _located(self, dim, index)
    return lax.reshape(put(x, promotion.cast(value, x.dtype), "set"), self.shape)


def _scatter_reduce(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    if index.size == 0:
        return self
    x, put, shape = _located(self, dim, index)
    updates = _trimmed(src, shape)
    result = addressing.reduce_into(x, updates, reduce, put, include_self=include_self)
    return lax.reshape(result, self.shape)


def _scatter_add(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return _scatter_reduce(self, dim, index, src, "sum")


def _scatter_legacy(
    self: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str
) -> jax.Array:
    return _scatter_reduce(self, dim, index, src, _LEGACY_NAMES[reduce])


def _scatter_value_legacy(
    self: jax.Array, dim: int, index: jax.Array, value: Operand, *, reduce: str
) -> jax.Array:
    src = jnp.broadcast_to(promotion.cast(value, self.dtype), index.shape)
    return _scatter_reduce(self, dim, index, src, _LEGACY_NAMES[reduce])


def _index_reduce(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    if index.size == 0:
        return self
    x, where = dims.at_least_1d(self), dims.at_least_1d(index)
    dim = dims.wrap(dim, x.ndim)
    where = addressing.checked(where, x.shape[dim], what="index out of range in self")
    put = addressing.put_blocks(x, [dim], [where], dim)
    updates = dims.at_least_1d(source)
    result = addressing.reduce_into(x, updates, reduce, put, include_self=include_self)
    return lax.reshape(result, self.shape)


def _bincount(
    self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    message = "bincount only supports 1-d non-negative integral inputs."
    if self.dtype not in _COUNTED:
        name = refused_shapes.dtype_name(self.dtype)
        raise NotImplementedError(f"\"bincount_cpu\" not implemented for '{name}'")
    if self.numel() == 0 and self.dim() == 1:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    if self.dim() != 1:
        raise RuntimeError(message)
    low, high = torch.stack([self.min(), self.max()]).tolist()
    if low < 0:
        raise RuntimeError(message)
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    length = max(high + 1, minlength)
    if weights is None:
        updates = torch.ones(self.shape, dtype=torch.int64, device=self.device)
    else:
        updates = weights if weights.dtype == torch.float32 else weights.to(torch.float64)
    blank = torch.zeros(length, dtype=updates.dtype, device=self.device)
    return blank.index_add(0, self.to(torch.int64), updates)


def _histc(self: jax.Array, bins: int = 100, min: Operand = 0, max: Operand = 0) -> jax.Array:
    compute = dtypes.opmath(self.dtype)
    flat = lax.reshape(self, (self.size,)).astype(compute)
    if self.size == 0:
        return dims.zeros((bins,), self.dtype)
    low, high = promotion.cast(min, compute), promotion.cast(max, compute)
    checks.require(low <= high, RuntimeError, "torch.histc: max must be larger than min")
    from_data = low == high
    low = lax.select(from_data, jnp.min(flat), low)
    high = lax.select(from_data, jnp.max(flat), high)
    one = np.array(1, compute)
    degenerate = low == high
    low, high = jnp.where(degenerate, low - one, low), jnp.where(degenerate, high + one, high)
    if dtypes.is_floating(compute):
        finite = jnp.isfinite(low) & jnp.isfinite(high)
        checks.require(finite, RuntimeError, "torch.histc: the range of the input is not finite")
    inside = (flat >= low) & (flat <= high)
    scaled = (flat - low) * np.array(bins, compute) / (high - low)
    bucket = jnp.minimum(jnp.where(inside, scaled, 0).astype(np.int32), np.int32(bins - 1))
    hits = inside.astype(compute)
    return dims.zeros((bins,), compute).at[bucket].add(hits, mode="promise_in_bounds")


TABLE: tuple[Lowering, ...] = (
    native("aten::scatter.src", _scatter_src),
    native("aten::scatter.value", _scatter_value),
    native("aten::scatter.reduce", _scatter_legacy),
    native("aten::scatter.value_reduce", _scatter_value_legacy),
    native("aten::scatter_add", _scatter_add),
    native("aten::scatter_reduce.two", _scatter_reduce),
    native("aten::index_reduce", _index_reduce),
    native("aten::histc", _histc),
    composite("aten::bincount", _bincount),
)
