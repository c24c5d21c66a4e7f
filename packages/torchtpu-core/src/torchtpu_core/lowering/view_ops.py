# SPDX-License-Identifier: Apache-2.0
"""Lowerings of view ops as functions of a value, for compiled graphs and decompositions.

In eager mode a view is PyTorch's own: metadata over a shared storage, no op. In a
graph that has been functionalised the same ops appear as pure functions, and their
``*_copy`` twins reach eager mode too. Operands are values in logical (contiguous)
order. Transposes go through `torchtpu_core.lowering.layout`, so that a contraction
can absorb them.

Axis legend: ``offset`` counts from the main diagonal, positive above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dims, dtypes, layout
from torchtpu_core.lowering.table import Lowering, native


def _identity(self: jax.Array) -> jax.Array:
    return self


def _view(self: jax.Array, size: Sequence[int]) -> jax.Array:
    return layout.reshaped(self, dims.inferred(size, self.size))


def _reshape_alias(self: jax.Array, size: Sequence[int], stride: Sequence[int]) -> jax.Array:
    return layout.reshaped(self, size)


def _permute(self: jax.Array, dims_: Sequence[int]) -> jax.Array:
    return layout.permuted(self, dims.wrap_all(dims_, self.ndim))


def _transpose(self: jax.Array, dim0: int, dim1: int) -> jax.Array:
    if self.ndim == 0:
        return self
    order = list(range(self.ndim))
    a, b = dims.wrap(dim0, self.ndim), dims.wrap(dim1, self.ndim)
    order[a], order[b] = b, a
    return layout.permuted(self, order)


def _t(self: jax.Array) -> jax.Array:
    return layout.permuted(self, (1, 0)) if self.ndim == 2 else self


def expand(self: jax.Array, size: Sequence[int], *, implicit: bool = False) -> jax.Array:
    """`self` broadcast to `size`; ``-1`` keeps a dimension."""
    lead = len(size) - self.ndim
    shape = [self.shape[i - lead] if s == -1 else int(s) for i, s in enumerate(size)]
    return lax.broadcast_in_dim(self, shape, tuple(range(lead, len(shape))))


def slice_dim(
    self: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    """``self[start:end:step]`` along `dim`."""
    dim = dims.wrap(dim, self.ndim)
    low, high = dims.span(self.shape[dim], start, end)
    if step == 1:
        return _part(self, dim, low, max(high - low, 0))
    return lax.slice_in_dim(self, low, high, step, dim)


def _narrow(self: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    dim = dims.wrap(dim, self.ndim)
    return _part(self, dim, start % self.shape[dim] if start < 0 else start, length)


def _part(self: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    """``self[start : start + length]`` along `dim`, a dimension's number."""
    starts, sizes = [0] * self.ndim, list(self.shape)
    starts[dim], sizes[dim] = start, length
    return layout.cut(self, starts, sizes)


def _select(self: jax.Array, dim: int, index: int) -> jax.Array:
    def one(x: jax.Array) -> jax.Array:
        return lax.index_in_dim(x, index, dims.wrap(dim, x.ndim), keepdims=False)

    return layout.moved(one(self), self, one)


def _unsqueeze(self: jax.Array, dim: int) -> jax.Array:
    return lax.expand_dims(self, (dims.wrap(dim, self.ndim + 1),))


def _squeeze(self: jax.Array) -> jax.Array:
    return lax.reshape(self, tuple(s for s in self.shape if s != 1))


def _squeeze_dims(self: jax.Array, dim: Sequence[int] | int) -> jax.Array:
    chosen = dims.wrap_all([dim] if isinstance(dim, int) else dim, self.ndim)
    shape = tuple(s for i, s in enumerate(self.shape) if s != 1 or i not in chosen)
    return lax.reshape(self, shape)


def split_with_sizes(self: jax.Array, split_sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    """Consecutive pieces of `self` along `dim`."""
    dim = dims.wrap(dim, self.ndim)
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(_part(self, dim, start, size))
        start += size
    return pieces


def _split(self: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    length = self.shape[dims.wrap(dim, self.ndim)]
    if length == 0 or split_size == 0:
        return [self]
    sizes = [min(split_size, length - i) for i in range(0, length, split_size)]
    return split_with_sizes(self, sizes, dim)


def _unbind(self: jax.Array, dim: int = 0) -> list[jax.Array]:
    dim = dims.wrap(dim, self.ndim)
    return [_select(self, dim, i) for i in range(self.shape[dim])]


def diagonal(self: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    """The diagonal of the plane (`dim1`, `dim2`), as the last dimension."""
    a, b = dims.wrap(dim1, self.ndim), dims.wrap(dim2, self.ndim)
    rest = [i for i in range(self.ndim) if i not in (a, b)]
    x = lax.transpose(self, (*rest, a, b))
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(x.shape[-2] - top, x.shape[-1] - left), 0)
    batch = x.shape[:-2]
    if length == 0:
        return dims.zeros((*batch, 0), x.dtype)
    x = lax.slice_in_dim(x, top, top + length, axis=x.ndim - 2)
    x = lax.slice_in_dim(x, left, left + length, axis=x.ndim - 1)
    x = lax.reshape(x, (*batch, length * length))
    return lax.slice_in_dim(x, 0, None, length + 1, axis=x.ndim - 1)


def unfold(self: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    """Windows of `size`, `step` apart, along `dimension`; the window is the last dimension."""
    x = dims.at_least_1d(self)
    dim = dims.wrap(dimension, x.ndim)
    count = (x.shape[dim] - size) // step + 1
    starts = lax.mul(dims.iota((count, size), 0), np.int32(step))
    windows = jnp.take(x, starts + dims.iota((count, size), 1), axis=dim, mode="clip")
    if self.ndim == 0:
        return lax.reshape(windows, (size,))
    return jnp.moveaxis(windows, dim + 1, -1)


def strided_positions(size: Sequence[int], stride: Sequence[int], offset: int) -> jax.Array:
    """`size` int64: where each element of an ``as_strided`` view lies in its storage."""
    position = lax.full(tuple(size), np.int64(offset))
    for d, s in enumerate(stride):
        if s and size[d] > 1:
            position = position + dims.iota(size, d, np.int64) * np.int64(s)
    return position


def _dense_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """Dimensions from slowest to fastest if they tile one dense block, else None."""
    real = [d for d in range(len(size)) if size[d] > 1 and stride[d]]
    order = sorted(real, key=lambda d: -stride[d])
    expected = 1
    for d in reversed(order):
        if stride[d] != expected:
            return None
        expected *= size[d]
    return order


def as_strided(
    self: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    """A strided view of `self` taken as a contiguous storage."""
    size, offset = tuple(size), storage_offset or 0
    if math.prod(size) == 0:
        return dims.zeros(size, self.dtype)
    flat = lax.reshape(self, (self.size,))
    order = _dense_order(size, stride)
    if order is None:
        return jnp.take(flat, strided_positions(size, stride, offset), mode="clip")
    dense = [size[d] for d in order]
    block = lax.slice_in_dim(flat, offset, offset + math.prod(dense))
    block = lax.reshape(block, tuple(dense))
    ascending = sorted(order)
    block = layout.permuted(block, [order.index(d) for d in ascending])
    return lax.broadcast_in_dim(block, size, tuple(ascending))


def _view_as_real(self: jax.Array) -> jax.Array:
    return jnp.stack([lax.real(self), lax.imag(self)], axis=-1)


def _view_as_complex(self: jax.Array) -> jax.Array:
    real, imag = (lax.index_in_dim(self, i, -1, keepdims=False) for i in (0, 1))
    return lax.complex(real, imag)


def view_dtype(self: jax.Array, dtype: torch.dtype) -> jax.Array:
    """The bytes of `self` read as `dtype`; the last dimension grows or shrinks to fit."""
    target, shape = dtypes.to_numpy(dtype), self.shape
    x = self
    if dtypes.is_complex(x.dtype):
        x = _view_as_real(x)
        x = lax.reshape(x, (*shape[:-1], shape[-1] * 2)) if shape else x
    if dtypes.is_complex(target):
        half = np.dtype(np.float32 if target.itemsize == 8 else np.float64)
        return _view_as_complex(_paired(_bitcast(x, half), shape))
    return lax.reshape(_bitcast(x, target), shape) if not shape else _bitcast(x, target)


def _paired(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2)) if shape else x


def _bitcast(x: jax.Array, target: np.dtype) -> jax.Array:
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    wanted = np.dtype(np.uint8) if target == np.bool_ else target
    ratio = x.dtype.itemsize / wanted.itemsize
    if ratio < 1:
        group = wanted.itemsize // x.dtype.itemsize
        x = lax.reshape(x, (*x.shape[:-1], x.shape[-1] // group, group))
    out = lax.bitcast_convert_type(x, wanted)
    if ratio > 1:
        out = lax.reshape(out, (*out.shape[:-2], out.shape[-2] * out.shape[-1]))
    return out.astype(np.bool_) if target == np.bool_ else out


#: Views with a ``*_copy`` twin: (base name, overload or "", function).
_VIEWS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("view", "", _view),
    ("view", "dtype", view_dtype),
    ("_reshape_alias", "", _reshape_alias),
    ("permute", "", _permute),
    ("transpose", "int", _transpose),
    ("t", "", _t),
    ("expand", "", expand),
    ("slice", "Tensor", slice_dim),
    ("select", "int", _select),
    ("unsqueeze", "", _unsqueeze),
    ("squeeze", "", _squeeze),
    ("squeeze", "dim", _squeeze_dims),
    ("squeeze", "dims", _squeeze_dims),
    ("split", "Tensor", _split),
    ("split_with_sizes", "", split_with_sizes),
    ("unbind", "int", _unbind),
    ("diagonal", "", diagonal),
    ("unfold", "", unfold),
    ("view_as_real", "", _view_as_real),
    ("view_as_complex", "", _view_as_complex),
    ("alias", "", _identity),
    ("detach", "", _identity),
    ("lift_fresh", "", _identity),
    ("_conj", "", jnp.conj),
    ("_neg_view", "", lax.neg),
)


def _rows(name: str, overload: str, function: Callable[..., Any]) -> tuple[Lowering, Lowering]:
    suffix = f".{overload}" if overload else ""
    return (
        native(f"aten::{name}{suffix}", function),
        native(f"aten::{name}_copy{suffix}", function),
    )


TABLE: tuple[Lowering, ...] = (
    *(row for view in _VIEWS for row in _rows(*view)),
    native("aten::as_strided", as_strided),  # its copy is a view and a clone (out_forms.py)
    native("aten::_unsafe_view", _view),
    native("aten::_reshape_copy", _view),
    native("aten::narrow_copy", _narrow),
    native("aten::unsafe_split.Tensor", _split),
    native("aten::unsafe_split_with_sizes", split_with_sizes),
    native("aten::lift", _identity),
)
