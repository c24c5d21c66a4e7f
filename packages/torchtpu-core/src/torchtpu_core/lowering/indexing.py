# SPDX-License-Identifier: Apache-2.0
"""Lowerings of indexing: ``x[i]``, ``x[i] = v``, index_*, gather, take, put.

Integer index tensors become one XLA gather or scatter. An assignment through one
mask becomes a select (`masks`). Only reading through a mask, or mixing a mask with
other index tensors, has a shape that depends on data: then whoever records the op
first replaces masks by positions (`masks.needs_mask_expansion`, `masks.expand_masks`),
at the price of one host read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import addressing, dims, dtypes, masks, promotion
from torchtpu_core.lowering.promotion import Operand, Scalar
from torchtpu_core.lowering.table import Lowering, native


def _located(
    self: jax.Array, indices: Sequence[jax.Array | None], *, check: bool
) -> tuple[list[int], list[jax.Array], int]:
    """Indexed axes, their index arrays broadcast to one shape, and where that shape lands."""
    axes = [d for d, i in enumerate(indices) if i is not None]
    arrays = []
    for axis in axes:
        index, size = indices[axis], self.shape[axis]
        assert index is not None
        if masks.is_mask(index):
            raise TypeError("masks are expanded before recording: see masks.needs_mask_expansion")
        what = addressing.out_of_bounds(axis, size)
        arrays.append(
            addressing.checked(index, size, negative=True, what=what)
            if check
            else addressing.wrapped(index, size)
        )
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes, list(jnp.broadcast_arrays(*arrays)), axes[0] if adjacent else 0


def _index(self: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    if all(i is None for i in indices):
        return self
    return addressing.take_blocks(self, *_located(self, indices, check=True))


def _unsafe_index(self: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    if all(i is None for i in indices):
        return self
    return addressing.take_blocks(self, *_located(self, indices, check=False))


def _write(
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array | Scalar,
    accumulate: bool,
    *,
    check: bool,
) -> jax.Array:
    if isinstance(values, Scalar):  # a 0-d tensor of the CPU
        values = values.to(self.dtype)
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) == 1 and masks.is_mask(given[0][1]):
        return masks.put_through_mask(self, given[0][0], given[0][1], values, accumulate)
    if not given:
        spread = jnp.broadcast_to(values.astype(self.dtype), self.shape)
        return self + spread if accumulate else spread
    axes, arrays, position = _located(self, indices, check=check)
    put = addressing.put_blocks(self, axes, arrays, position)
    if accumulate:
        return addressing.accumulate(self, values, "sum", put)
    return put(self, values, "set")


def _index_put(
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
) -> jax.Array:
    return _write(self, indices, values, accumulate, check=True)


def _unsafe_index_put(
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
) -> jax.Array:
    return _write(self, indices, values, accumulate, check=False)


def _index_put_impl(
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> jax.Array:
    return _write(self, indices, values, accumulate, check=not unsafe)


def _unsafe_masked_index(
    self: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], fill: Operand
) -> jax.Array:
    value = promotion.cast(fill, self.dtype)
    taken = _unsafe_index(self, indices)
    return jnp.where(mask, taken, value)


def _unsafe_masked_index_put_accumulate(
    self: jax.Array,
    mask: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
) -> jax.Array:
    kept = jnp.where(mask, values, dims.zero(values.dtype))
    clamped = [
        None if i is None else jnp.clip(i, -self.shape[d], self.shape[d] - 1)
        for d, i in enumerate(indices)
    ]
    return _write(self, clamped, kept, True, check=False)


def _one_axis(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    *,
    negative: bool = False,
    error: type[Exception] = IndexError,
    what: str | None = None,
) -> tuple[jax.Array, int, jax.Array]:
    """`self` at least 1-d, `dim` wrapped, and a checked 1-d index."""
    x = dims.at_least_1d(self)
    dim = dims.wrap(dim, x.ndim)
    size = x.shape[dim]
    message = addressing.out_of_bounds(dim, size) if what is None else what
    flat = dims.at_least_1d(index)
    return x, dim, addressing.checked(flat, size, negative=negative, error=error, what=message)


def _index_select(self: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    x, dim, where = _one_axis(self, dim, index, what="index out of range in self")
    taken = addressing.take_blocks(x, [dim], [where], dim)
    return lax.reshape(taken, ()) if self.ndim == 0 else taken


def _index_add(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Operand = 1
) -> jax.Array:
    error = RuntimeError if self.ndim > 1 else IndexError
    x, dim, where = _one_axis(self, dim, index, error=error)
    if source.size == 0:
        return self
    compute = dtypes.opmath(x.dtype)
    updates = dims.at_least_1d(source).astype(compute)
    if not (isinstance(alpha, int) and alpha == 1):
        scale = promotion.cast(alpha, compute)
        updates = updates & scale if compute == np.bool_ else updates * scale
    put = addressing.put_blocks(x, [dim], [where], dim)
    return lax.reshape(put(x.astype(compute), updates, "sum"), self.shape).astype(self.dtype)


def _index_copy(self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    x, dim, where = _one_axis(self, dim, index)
    if where.size == 0:
        return self
    updates = dims.at_least_1d(source)
    put = addressing.put_blocks(x, [dim], [where], dim)
    return lax.reshape(put(x, updates, "set"), self.shape)


def _index_fill(self: jax.Array, dim: int, index: jax.Array, value: Operand) -> jax.Array:
    x, dim, where = _one_axis(self, dim, index, negative=True)
    if where.size == 0:
        return self
    put = addressing.put_blocks(x, [dim], [where], dim)
    return lax.reshape(put(x, promotion.cast(value, x.dtype), "set"), self.shape)


def _gather(self: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    x, where = dims.at_least_1d(self), dims.at_least_1d(index)
    dim = dims.wrap(dim, x.ndim)
    what = addressing.out_of_bounds(dim, x.shape[dim])
    where = addressing.checked(where, x.shape[dim], error=RuntimeError, what=what)
    return lax.reshape(addressing.take_elements(x, dim, where), index.shape)


def _flat_positions(self: jax.Array, index: jax.Array) -> jax.Array:
    what = f"out of range: tried to access an index on a tensor of {self.size} elements."
    flat = lax.reshape(index, (index.size,))
    return addressing.checked(flat, self.size, negative=True, what=what)


def _take(self: jax.Array, index: jax.Array) -> jax.Array:
    flat = lax.reshape(self, (self.size,))
    taken = addressing.take_blocks(flat, [0], [_flat_positions(self, index)], 0)
    return lax.reshape(taken, index.shape)


def _put(
    self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False
) -> jax.Array:
    if index.size == 0:
        return self
    flat, values = lax.reshape(self, (self.size,)), lax.reshape(source, (source.size,))
    put = addressing.put_blocks(flat, [0], [_flat_positions(self, index)], 0)
    if accumulate:
        updated = addressing.accumulate(flat, values, "sum", put)
    else:
        updated = put(flat, values, "set")
    return lax.reshape(updated, self.shape)


_NATIVE: tuple[tuple[str, Any], ...] = (
    ("index.Tensor", _index),
    ("_unsafe_index.Tensor", _unsafe_index),
    ("index_put", _index_put),
    ("_unsafe_index_put", _unsafe_index_put),
    ("_index_put_impl", _index_put_impl),
    ("_unsafe_masked_index", _unsafe_masked_index),
    ("_unsafe_masked_index_put_accumulate", _unsafe_masked_index_put_accumulate),
    ("index_select", _index_select),
    ("index_add", _index_add),
    ("index_copy", _index_copy),
    ("index_fill.int_Scalar", _index_fill),
    ("index_fill.int_Tensor", _index_fill),
    ("gather", _gather),
    ("take", _take),
    ("put", _put),
)

TABLE: tuple[Lowering, ...] = tuple(native(f"aten::{n}", f) for n, f in _NATIVE)
