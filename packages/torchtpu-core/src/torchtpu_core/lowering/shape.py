# SPDX-License-Identifier: Apache-2.0
"""Lowerings of ops that rearrange or embed elements into a new tensor.

Concatenation, flips, triangles, and the backward and scatter forms of views. The
embeddings are a pad, or a select under an iota mask, never an XLA scatter: a
scatter is a sequential loop on XLA:CPU. Views themselves are in ``view_ops.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import (
    cut_rows,
    dims,
    dtypes,
    layout,
    mxu,
    promotion,
    refused_shapes,
    view_ops,
)
from torchtpu_core.lowering.promotion import Operand, Scalar
from torchtpu_core.lowering.table import Lowering, composite, native

#: More than the VMEM that one operation has, which fits no fusion.
_LARGE_BYTES = 16 << 20


def cat(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """`tensors` one after another along `dim`; legacy empty `(0,)` tensors are skipped."""
    result = promotion.result_type(*tensors)
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    kept = [promotion.cast(t, result) for t in kept]
    if len(kept) == 1:
        return kept[0]
    joined = lax.concatenate(kept, dims.wrap(dim, kept[0].ndim))
    return lax.optimization_barrier(joined) if _crosses_lanes(kept, joined, dim) else joined


def _crosses_lanes(parts: Sequence[jax.Array], joined: jax.Array, dim: int) -> bool:
    """Whether a TPU had better write what is joined: wide parts along lanes, but not whole ones.

    XLA:TPU would join them anew for each reader, as for a loss and its gradient, of copies of all
    parts and at once in float32: logits that tensor parallelism gathers took thrice their size.
    """
    along_lanes = dims.wrap(dim, joined.ndim) == joined.ndim - 1
    if not mxu.lowers_for("tpu") or not along_lanes or joined.nbytes < _LARGE_BYTES:
        return False
    widths = [part.shape[-1] for part in parts]
    return min(widths) > layout.LANES and any(width % layout.LANES for width in widths)


def stack(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """`tensors` of one shape along a new dimension `dim`."""
    result = promotion.result_type(*tensors)
    axis = dims.wrap(dim, tensors[0].ndim + 1)
    grown = [lax.expand_dims(promotion.cast(t, result), (axis,)) for t in tensors]
    return lax.concatenate(grown, axis) if len(grown) > 1 else grown[0]


def _chunk_cat(tensors: Sequence[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    dim = dims.wrap(dim, tensors[0].ndim)
    parts = []
    for t in tensors:
        missing = -t.shape[dim] % num_chunks
        config = [(0, missing if d == dim else 0, 0) for d in range(t.ndim)]
        padded = lax.pad(t, dims.zero(t.dtype), config)
        width = padded.size // max(dims.numel(t.shape[:dim]) * num_chunks, 1)
        parts.append(lax.reshape(padded, (*t.shape[:dim], num_chunks, width)))
    return cat(parts, dim + 1)


def _flip(self: jax.Array, dims_: Sequence[int]) -> jax.Array:
    return layout.flipped(self, dims.wrap_all(dims_, self.ndim)) if self.ndim and dims_ else self


def _roll_one(x: jax.Array, shift: int | Scalar, dim: int) -> jax.Array:
    length = x.shape[dim]
    if isinstance(shift, Scalar):
        if length == 0:
            return x
        cut = -shift.to(np.dtype(np.int64)) % np.int64(length)
        twice = lax.concatenate([x, x], dim)
        return lax.dynamic_slice_in_dim(twice, cut, length, dim)
    cut = -shift % length if length else 0
    if cut == 0:
        return x
    head = lax.slice_in_dim(x, 0, cut, axis=dim)
    tail = lax.slice_in_dim(x, cut, length, axis=dim)
    return lax.concatenate([tail, head], dim)


def _roll(self: jax.Array, shifts: Sequence[int | Scalar], dims_: Sequence[int] = ()) -> jax.Array:
    if not dims_:
        flat = lax.reshape(self, (self.size,))
        return lax.reshape(_roll_one(flat, shifts[0], 0), self.shape)
    if self.ndim == 0:
        return self
    for shift, dim in zip(shifts, dims_, strict=True):
        self = _roll_one(self, shift, dims.wrap(dim, self.ndim))
    return self


def _repeat(self: jax.Array, repeats: Sequence[int]) -> jax.Array:
    lead = len(repeats) - self.ndim
    shape = (1,) * lead + self.shape
    pairs = list(itertools.chain.from_iterable(zip(repeats, shape, strict=True)))
    where = [2 * i + 1 for i in range(lead, len(repeats))]
    tiled = lax.broadcast_in_dim(self, pairs, where)
    return lax.reshape(tiled, tuple(r * s for r, s in zip(repeats, shape, strict=True)))


def _rot90(self: jax.Array, k: int = 1, dims_: Sequence[int] = (0, 1)) -> jax.Array:
    a, b = dims.wrap_all(dims_, self.ndim)
    order = list(range(self.ndim))
    order[a], order[b] = b, a
    turns = k % 4
    if turns == 1:
        return lax.transpose(lax.rev(self, (b,)), order)
    if turns == 3:
        return lax.rev(lax.transpose(self, order), (b,))
    return lax.rev(self, (a, b)) if turns == 2 else self


def triangle(shape: Sequence[int], diagonal: Operand, *, upper: bool) -> jax.Array:
    """Bool mask of the last two dimensions of `shape`: on and above (or below) `diagonal`."""
    plane = tuple(shape[-2:])
    column_minus_row = dims.iota(plane, 1) - dims.iota(plane, 0)
    wide = promotion.cast(diagonal, np.dtype(np.int64))
    edge = jnp.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)
    mask = column_minus_row >= edge if upper else column_minus_row <= edge
    return lax.broadcast_in_dim(mask, tuple(shape), (len(shape) - 2, len(shape) - 1))


def _tril(self: jax.Array, diagonal: Operand = 0) -> jax.Array:
    mask = triangle(self.shape, diagonal, upper=False)
    return lax.select(mask, self, dims.zeros(self.shape, self.dtype))


def _triu(self: jax.Array, diagonal: Operand = 0) -> jax.Array:
    mask = triangle(self.shape, diagonal, upper=True)
    return lax.select(mask, self, dims.zeros(self.shape, self.dtype))


def _diagonal_scatter(
    self: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    a, b = dims.wrap(dim1, self.ndim), dims.wrap(dim2, self.ndim)
    rows = self.shape[a]
    skipped = max(-offset, 0)
    config = [(0, 0, 0)] * (src.ndim - 1)
    config.append((skipped, rows - skipped - src.shape[-1], 0))
    if src.shape[-1] == 0:
        return self
    by_row = lax.pad(src.astype(self.dtype), dims.zero(self.dtype), config)
    rest = [i for i in range(self.ndim) if i not in (a, b)]
    where = sorted([*rest, a])
    by_row = jnp.moveaxis(by_row, -1, where.index(a))
    spread = lax.broadcast_in_dim(by_row, self.shape, where)
    on = dims.iota(self.shape, b) - dims.iota(self.shape, a) == np.int32(offset)
    return lax.select(on, spread, self)


def _diag_embed(self: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    ndim = self.ndim + 1
    a, b = dims.wrap(dim1, ndim), dims.wrap(dim2, ndim)
    side = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for position in sorted((a, b)):
        shape.insert(position, side)
    return _diagonal_scatter(dims.zeros(shape, self.dtype), self, offset, a, b)


def _diagonal_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> jax.Array:
    blank = dims.zeros(input_sizes, grad_output.dtype)
    return _diagonal_scatter(blank, grad_output, offset, dim1, dim2)


def _trace(self: jax.Array) -> jax.Array:
    line = view_ops.diagonal(self)
    if dtypes.is_integral(line.dtype):
        return jnp.sum(line.astype(np.int64))
    return jnp.sum(line.astype(dtypes.opmath(line.dtype)))


def embed_slice(
    x: jax.Array, length: int, dim: int, start: int, step: int, fill: np.ndarray | None = None
) -> jax.Array:
    """`x` spread over a dimension of `length` from `start` in steps, zero (or `fill`) elsewhere."""
    count = x.shape[dim]
    used = (count - 1) * step + 1 if count else 0
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (start, length - start - used, step - 1)
    return lax.pad(x, dims.zero(x.dtype) if fill is None else fill, config)


def _slice_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> jax.Array:
    dim = dims.wrap(dim, len(input_sizes))
    if grad_output.shape[dim] == 0:
        return dims.zeros(input_sizes, grad_output.dtype)
    low, _ = dims.span(input_sizes[dim], start, end)
    starts = [low if d == dim else 0 for d in range(len(input_sizes))]
    whole = cut_rows.embedded(grad_output, tuple(input_sizes), starts)
    if whole is not None:
        return whole
    return embed_slice(grad_output, input_sizes[dim], dim, low, step)


def _select_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int
) -> jax.Array:
    dim = dims.wrap(dim, len(input_sizes))
    grown = lax.expand_dims(grad_output, (dim,))
    return embed_slice(grown, input_sizes[dim], dim, index % input_sizes[dim], 1)


def _slice_scatter(
    self: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim = dims.wrap(dim, self.ndim)
    low, high = dims.span(self.shape[dim], start, end)
    shape = list(self.shape)
    shape[dim] = -(-(high - low) // step)
    src = jnp.broadcast_to(src.astype(self.dtype), shape)
    if src.size == 0 or self.size == 0:
        return self
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, low, dim)
    spread = embed_slice(src, self.shape[dim], dim, low, step)
    on = embed_slice(lax.full(shape, True), self.shape[dim], dim, low, step)
    return lax.select(on, spread, self)


def _select_scatter(self: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    dim = dims.wrap(dim, self.ndim)
    src = jnp.broadcast_to(src, self.shape[:dim] + self.shape[dim + 1 :]).astype(self.dtype)
    row = lax.expand_dims(src, (dim,))
    return lax.dynamic_update_slice_in_dim(self, row, index % self.shape[dim], dim)


def _as_strided_scatter(
    self: jax.Array,
    src: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    where = view_ops.strided_positions(size, stride, storage_offset or 0)
    flat = lax.reshape(self, (self.size,))
    updated = flat.at[where].set(src.astype(self.dtype), mode="promise_in_bounds")
    return lax.reshape(updated, self.shape)


def _unfold_backward(
    grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> jax.Array:
    compute = dtypes.opmath(grad_in.dtype)

    def forward(x: jax.Array) -> jax.Array:
        return view_ops.unfold(x, dim, size, step)

    shape = jax.ShapeDtypeStruct(tuple(input_sizes), compute)
    windows = jax.eval_shape(forward, shape).shape
    # istft gives one window for all of a batch.
    given = jnp.broadcast_to(grad_in, windows).astype(compute)
    (grad,) = jax.linear_transpose(forward, shape)(given)
    return grad


def _block_diag(tensors: Sequence[jax.Array]) -> jax.Array:
    result = promotion.result_type(*tensors)
    blocks = [lax.reshape(t, (1,) * (2 - t.ndim) + t.shape) for t in tensors]
    width = sum(b.shape[1] for b in blocks)
    rows, left = [], 0
    for block in blocks:
        config = [(0, 0, 0), (left, width - left - block.shape[1], 0)]
        rows.append(lax.pad(block.astype(result), dims.zero(result), config))
        left += block.shape[1]
    return lax.concatenate(rows, 0)


def _linalg_cross(self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    (a, b), _ = promotion.promote(self, other)
    dim = dims.wrap(dim, a.ndim)

    def turned(x: jax.Array, shift: int) -> jax.Array:
        return _roll_one(x, shift, dim)

    return turned(a, -1) * turned(b, -2) - turned(a, -2) * turned(b, -1)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        name = refused_shapes.dtype_name(repeats.dtype)
        raise NotImplementedError(f"\"repeat_interleave_cpu\" not implemented for '{name}'")
    ends = repeats.cumsum(0)
    if output_size is None:
        output_size = int(ends[-1]) if repeats.numel() else 0
    if repeats.numel() and bool((repeats < 0).any()):
        raise RuntimeError("repeats can not be negative")
    steps = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    where = torch.searchsorted(ends, steps, right=True, out_int32=repeats.dtype == torch.int32)
    return where.to(repeats.dtype)


def _pack_padded_sequence(
    input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    counts = [int(n) for n in lengths.tolist()]
    if not counts or counts[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an "
            "element in 'lengths' that is <= 0"
        )
    steps, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
    if any(a < b for a, b in itertools.pairwise(counts)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when "
            "`enforce_sorted` is True. You can pass `enforce_sorted=False` to "
            "pack_padded_sequence and/or pack_sequence to sidestep this "
            "requirement if you do not need ONNX exportability."
        )
    sizes = [sum(n > t for n in counts) for t in range(counts[0])]
    across = (1, steps) if batch_first else (batch, 1)
    rows = [t * across[0] + b * across[1] for t, size in enumerate(sizes) for b in range(size)]
    where = torch.tensor(rows, dtype=torch.int64).to(input.device)
    flat = input.reshape(steps * batch, *input.shape[2:])
    return flat.index_select(0, where), torch.tensor(sizes, dtype=torch.int64)


TABLE: tuple[Lowering, ...] = (
    native("aten::cat", cat),
    native("aten::stack", stack),
    native("aten::_stack", stack),
    native("aten::_chunk_cat", _chunk_cat),
    native("aten::flip", _flip),
    native("aten::roll", _roll, runtime=("shifts",)),
    native("aten::repeat", _repeat),
    native("aten::rot90", _rot90),
    native("aten::tril", _tril, runtime=("diagonal",)),
    native("aten::triu", _triu, runtime=("diagonal",)),
    native("aten::diag_embed", _diag_embed),
    native("aten::diagonal_backward", _diagonal_backward),
    native("aten::diagonal_scatter", _diagonal_scatter),
    native("aten::trace", _trace),
    native("aten::slice_backward", _slice_backward),
    native("aten::select_backward", _select_backward),
    native("aten::slice_scatter", _slice_scatter),
    native("aten::select_scatter", _select_scatter),
    native("aten::as_strided_scatter", _as_strided_scatter),
    native("aten::unfold_backward", _unfold_backward),
    native("aten::block_diag", _block_diag),
    native("aten::linalg_cross", _linalg_cross),
    composite("aten::repeat_interleave.Tensor", _repeat_interleave),
    composite("aten::_pack_padded_sequence", _pack_padded_sequence),
)
