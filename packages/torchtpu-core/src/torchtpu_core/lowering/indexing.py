# SPDX-License-Identifier: Apache-2.0
"""Lowerings of indexing: ``x[i]``, ``x[i] = v``, index_*, gather, take, put, masked_*.

Integer index tensors become one XLA gather or scatter. An assignment through one
mask needs no addresses at all and becomes a select. Only reading through a mask, or
mixing a mask with other index tensors, has a shape that depends on data: then
whoever records the op first replaces masks by positions (`needs_mask_expansion`,
`expand_masks`), at the price of one host read.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import addressing, checks, dims, dtypes, promotion
from torchtpu_core.lowering.promotion import Operand, Scalar
from torchtpu_core.lowering.table import Lowering, native

_MASKS = (torch.bool, torch.uint8)


def needs_mask_expansion(op_name: str, indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether `expand_masks` must run before ``op_name`` (such as ``aten::index.Tensor``).

    A write through exactly one mask does not need it: the written region is known
    without knowing which elements are in it.
    """
    given = [i for i in indices if i is not None]
    if not any(i.dtype in _MASKS for i in given):
        return False
    return len(given) > 1 or "put" not in op_name


def check_masks(shape: Sequence[int], indices: Sequence[torch.Tensor | None]) -> None:
    """Refuse masks that do not cover the dimensions they index, before anything is recorded.

    Args:
        shape: sizes of the indexed tensor.
        indices: one entry per dimension, a mask of `k` dimensions standing for `k`.

    Raises:
        IndexError: as on CPU, at the first dimension that differs.
    """
    axis = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            axis += 1
            continue
        if index.dtype == torch.uint8:
            warnings.warn(
                "indexing with dtype torch.uint8 is now deprecated, please use a dtype "
                "torch.bool instead.",
                stacklevel=3,
            )
        for dim, size in enumerate(index.shape):
            if axis + dim >= len(shape):
                raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
            if size != shape[axis + dim]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {dim} does not match the "
                    f"shape of the indexed tensor {list(shape)} at index {axis + dim}"
                )
        axis += index.ndim


def expand_masks(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """`indices` with every mask of `k` dimensions replaced by `k` tensors of positions.

    Reads the host once per mask, for the number of true elements.
    """
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            expanded.append(index)
        else:
            expanded.extend(index.nonzero().unbind(1))
    return expanded


def _is_mask(index: jax.Array) -> bool:
    return index.dtype in (np.bool_, np.uint8)


def _located(
    self: jax.Array, indices: Sequence[jax.Array | None], *, check: bool
) -> tuple[list[int], list[jax.Array], int]:
    """Indexed axes, their index arrays broadcast to one shape, and where that shape lands."""
    axes = [d for d, i in enumerate(indices) if i is not None]
    arrays = []
    for axis in axes:
        index, size = indices[axis], self.shape[axis]
        assert index is not None
        if _is_mask(index):
            raise TypeError("masks are expanded before recording: see needs_mask_expansion")
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


def put_through_mask(
    self: jax.Array,
    axis: int,
    mask: jax.Array,
    values: jax.Array,
    accumulate: bool,
    count: jax.Array | None = None,
) -> jax.Array:
    """A tensor whose elements where a mask is true are replaced, or added to.

    Args:
        self: of any shape.
        axis: the first dimension that the mask covers.
        mask: bool or uint8.
        values: of the shape of ``self[mask]``, or broadcastable to it.
        accumulate: add them.
        count: how many of `values` there are, where the rest of them is padding.

    Raises:
        IndexError: the mask has other sizes than what it covers.
    """
    covered = self.shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        raise IndexError(
            f"The shape of the mask {list(mask.shape)} at index {axis} does not match the "
            f"shape of the indexed tensor {list(self.shape)} at index {axis}"
        )
    mask = mask.astype(np.bool_)
    spread = _spread_over_mask(self, axis, mask, values.astype(self.dtype), count)
    where = lax.broadcast_in_dim(mask, self.shape, tuple(range(axis, axis + mask.ndim)))
    if accumulate:
        spread = (self | spread) if self.dtype == np.bool_ else self + spread
    return lax.select(where, spread, self)


def _spread_over_mask(
    self: jax.Array, axis: int, mask: jax.Array, values: jax.Array, count: jax.Array | None
) -> jax.Array:
    """`values` (shape of ``self[mask]``, or broadcastable to it) laid out like `self`."""
    rest = self.ndim - axis - mask.ndim
    at = values.ndim - rest - 1
    if at < 0 or values.shape[at] == 1:
        tail = values.shape[max(at + 1, 0) :]
        head = values.shape[: max(at, 0)]
        ones = (1,) * mask.ndim if at >= 0 else ()
        return jnp.broadcast_to(lax.reshape(values, (*head, *ones, *tail)), self.shape)
    room = values.shape[at]
    shape = f" of shape {list(values.shape)}" if count is None else ""
    ranks = mask_ranks(mask)
    total = ranks[-1] + 1 if mask.size else jnp.zeros((), ranks.dtype)
    checks.require(
        total == (room if count is None else count),
        RuntimeError,
        f"shape mismatch: value tensor{shape} cannot be broadcast to the indexing result, whose "
        "length is the number of true elements of the mask",
    )
    if room == 0:
        return self
    picked = addressing.take_blocks(values, [at], [jnp.clip(ranks, 0, room - 1)], at)
    spread = (*values.shape[:at], *mask.shape, *values.shape[at + 1 :])
    return jnp.broadcast_to(lax.reshape(picked, spread), self.shape)


def mask_ranks(mask: jax.Array) -> jax.Array:
    """`(mask.size,)`: how many true elements lie before each element, itself included, minus 1."""
    wide = np.int32 if mask.size < 2**31 else np.int64
    return lax.cumsum(lax.reshape(mask, (mask.size,)).astype(wide)) - np.array(1, wide)


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
    if len(given) == 1 and _is_mask(given[0][1]):
        return put_through_mask(self, given[0][0], given[0][1], values, accumulate)
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


def _masked_fill(self: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    return jnp.where(mask.astype(np.bool_), promotion.cast(value, self.dtype), self)


def _masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    self, mask = jnp.broadcast_arrays(self, mask)
    if self.size == 0:
        return self
    flat, ranks = lax.reshape(source, (source.size,)), mask_ranks(mask)
    checks.require(
        ranks[-1] < source.size,
        RuntimeError,
        "Number of elements of source < number of ones in mask",
    )
    if source.size == 0:
        return self
    ranks = lax.clamp(ranks.dtype.type(0), ranks, ranks.dtype.type(source.size - 1))
    picked = lax.reshape(addressing.take_blocks(flat, [0], [ranks], 0), self.shape)
    return lax.select(mask, picked, self)


def _masked_scatter_backward(
    grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]
) -> jax.Array:
    grad, mask = jnp.broadcast_arrays(grad_output, mask)
    count = dims.numel(sizes)
    blank = dims.zeros((count,), grad.dtype)
    if count == 0 or grad.size == 0:
        return lax.reshape(blank, tuple(sizes))
    ranks = mask_ranks(mask)
    where = lax.select(lax.reshape(mask, (mask.size,)), ranks, jnp.full_like(ranks, count))
    spread = blank.at[where].set(lax.reshape(grad, (grad.size,)), mode="drop")
    return lax.reshape(spread, tuple(sizes))


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
    ("masked_fill.Scalar", _masked_fill),
    ("masked_fill.Tensor", _masked_fill),
    ("masked_scatter", _masked_scatter),
    ("masked_scatter_backward", _masked_scatter_backward),
)

TABLE: tuple[Lowering, ...] = tuple(native(f"aten::{n}", f) for n, f in _NATIVE)
