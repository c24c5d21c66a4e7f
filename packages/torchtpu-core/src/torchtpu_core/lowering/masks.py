# SPDX-License-Identifier: Apache-2.0
"""Lowerings of what masks select: ``x[mask] = v``, masked_*, and what runs before ``x[mask]``.

A write through one mask needs no addresses: it becomes a select. Reading through one, or mixing it
with other index tensors, has a shape that depends on data.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import addressing, checks, dims, promotion
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.table import Lowering, native

#: Dtypes of indices that choose elements where they are true.
MASKS = (torch.bool, torch.uint8)


def needs_mask_expansion(op_name: str, indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether `expand_masks` must run before ``op_name`` (such as ``aten::index.Tensor``).

    A write through exactly one mask does not need it: the written region is known
    without knowing which elements are in it.
    """
    given = [i for i in indices if i is not None]
    if not any(i.dtype in MASKS for i in given):
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
        if index is None or index.dtype not in MASKS:
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
        if index is None or index.dtype not in MASKS:
            expanded.append(index)
        else:
            expanded.extend(index.nonzero().unbind(1))
    return expanded


def is_mask(index: jax.Array) -> bool:
    """Whether an index array is a mask."""
    return index.dtype in (np.bool_, np.uint8)


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
    spread, fits = _spread_over_mask(self, axis, mask, values.astype(self.dtype), count)
    where = lax.broadcast_in_dim(mask & fits, self.shape, tuple(range(axis, axis + mask.ndim)))
    if accumulate:
        spread = (self | spread) if self.dtype == np.bool_ else self + spread
    return lax.select(where, spread, self)


def _spread_over_mask(
    self: jax.Array, axis: int, mask: jax.Array, values: jax.Array, count: jax.Array | None
) -> tuple[jax.Array, jax.Array | bool]:
    """`values` (shape of ``self[mask]``, or broadcastable to it) laid out like `self`.

    Also whether there are as many as the mask chooses: else nothing is to be written.
    """
    rest = self.ndim - axis - mask.ndim
    at = values.ndim - rest - 1
    if at < 0 or values.shape[at] == 1:
        tail = values.shape[max(at + 1, 0) :]
        head = values.shape[: max(at, 0)]
        ones = (1,) * mask.ndim if at >= 0 else ()
        return jnp.broadcast_to(lax.reshape(values, (*head, *ones, *tail)), self.shape), True
    room = values.shape[at]
    shape = f" of shape {list(values.shape)}" if count is None else ""
    ranks = mask_ranks(mask)
    total = ranks[-1] + 1 if mask.size else jnp.zeros((), ranks.dtype)
    fits = total == (room if count is None else count)
    checks.require(
        fits,
        RuntimeError,
        f"shape mismatch: value tensor{shape} cannot be broadcast to the indexing result, whose "
        "length is the number of true elements of the mask",
    )
    if room == 0:
        return self, fits
    picked = addressing.take_blocks(values, [at], [jnp.clip(ranks, 0, room - 1)], at)
    spread = (*values.shape[:at], *mask.shape, *values.shape[at + 1 :])
    return jnp.broadcast_to(lax.reshape(picked, spread), self.shape), fits


def mask_ranks(mask: jax.Array) -> jax.Array:
    """`(mask.size,)`: how many true elements lie before each element, itself included, minus 1."""
    wide = np.int32 if mask.size < 2**31 else np.int64
    return lax.cumsum(lax.reshape(mask, (mask.size,)).astype(wide)) - np.array(1, wide)


def _masked_fill(self: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    return jnp.where(mask.astype(np.bool_), promotion.cast(value, self.dtype), self)


def _masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    self, mask = jnp.broadcast_arrays(self, mask)
    if self.size == 0:
        return self
    flat, ranks = lax.reshape(source, (source.size,)), mask_ranks(mask)
    fits = ranks[-1] < source.size
    checks.require(
        fits,
        RuntimeError,
        "Number of elements of source < number of ones in mask",
    )
    if source.size == 0:
        return self
    ranks = lax.clamp(ranks.dtype.type(0), ranks, ranks.dtype.type(source.size - 1))
    picked = lax.reshape(addressing.take_blocks(flat, [0], [ranks], 0), self.shape)
    return lax.select(mask & fits, picked, self)  # too few: it keeps what it holds


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


TABLE: tuple[Lowering, ...] = (
    native("aten::masked_fill.Scalar", _masked_fill),
    native("aten::masked_fill.Tensor", _masked_fill),
    native("aten::masked_scatter", _masked_scatter),
    native("aten::masked_scatter_backward", _masked_scatter_backward),
)
