# SPDX-License-Identifier: Apache-2.0
"""Gathers and scatters as the index ops need them, on ``lax.gather`` and ``lax.scatter``.

Two forms of addressing: *blocks* (index arrays name positions along some axes, the
other axes are taken whole, as in ``x[i, :, j]``) and *elements* (one index per
element along one axis, as in ``gather``). Indices are checked by the caller or
by `checked`; XLA itself clamps a gather and drops a scatter outside the operand,
so no address here can leave the buffer.

A TPU computes whole vectors: where each row has one index, as labels have, all of the row is
compared with it, which fuses with what makes the row and with what uses the result. A gather or
scatter would have the row in memory.

Shape letters: ``B`` the common shape of the index arrays, ``k`` the indexed axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dims, dtypes, mxu

_PROMISE = lax.GatherScatterMode.PROMISE_IN_BOUNDS

#: ``put(x, updates, how)`` writes updates at addresses fixed when it was made.
Put = Callable[[jax.Array, jax.Array, str], jax.Array]

_SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "amin": lax.scatter_min,
    "amax": lax.scatter_max,
}

_COMBINED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "set": lambda _, update: update,
    "sum": jnp.add,
    "prod": jnp.multiply,
    "amin": jnp.minimum,
    "amax": jnp.maximum,
}

#: On bool, a sum is "any" and a product is "all".
_ON_BOOL = {"set": "set", "sum": "amax", "prod": "amin", "amin": "amin", "amax": "amax"}


def narrowed(index: jax.Array, size: int) -> jax.Array:
    """`index` as int32 if every position of a dimension of `size` fits."""
    return index.astype(np.int32 if size < 2**31 else np.int64)


def checked(
    index: jax.Array,
    size: int,
    *,
    negative: bool = False,
    error: type[Exception] = IndexError,
    what: str,
) -> jax.Array:
    """`index` made non-negative and narrow; outside its dimension it is reported as `error`."""
    low = -size if negative else 0
    checks.require((index >= low) & (index < size), error, what)
    return wrapped(index, size) if negative else narrowed(index, size)


def wrapped(index: jax.Array, size: int) -> jax.Array:
    """`index` with negative entries counted from the end, unchecked."""
    index = narrowed(index, size)
    if dtypes.is_integral(index.dtype) and jnp.issubdtype(index.dtype, jnp.unsignedinteger):
        return index
    return lax.select(index < 0, index + index.dtype.type(size), index)


def out_of_bounds(dim: int, size: int) -> str:
    """CPU PyTorch's message for a bad index, without the value, which only the device knows."""
    if size == 0:
        return "index is out of bounds for dimension with size 0"  # CPU does not say which
    return f"index is out of bounds for dimension {dim} with size {size}"


def _joined(indices: Sequence[jax.Array]) -> jax.Array:
    """Index arrays of one shape `B` as `B + (k,)`."""
    wide = np.int64 if any(i.dtype == np.int64 for i in indices) else np.int32
    columns = [lax.expand_dims(i.astype(wide), (i.ndim,)) for i in indices]
    return lax.concatenate(columns, columns[0].ndim - 1) if len(columns) > 1 else columns[0]


def _windows(x: jax.Array, axes: Sequence[int], inner: int, position: int) -> tuple[int, ...]:
    """Dimensions of the indexed result that run over whole axes of `x`."""
    total = x.ndim - len(axes) + inner
    return tuple(d for d in range(total) if not position <= d < position + inner)


def block_shape(
    x: jax.Array, axes: Sequence[int], shape: Sequence[int], position: int
) -> tuple[int, ...]:
    """Shape of `x` indexed along `axes` by arrays of `shape`, placed at `position`."""
    rest = [s for d, s in enumerate(x.shape) if d not in axes]
    return (*rest[:position], *shape, *rest[position:])


def take_blocks(
    x: jax.Array, axes: Sequence[int], indices: Sequence[jax.Array], position: int
) -> jax.Array:
    """Whole blocks of `x` at `indices` (shape `B` each) along `axes`; `B` lands at `position`."""
    shape = block_shape(x, axes, indices[0].shape, position)
    if x.size == 0 or dims.numel(shape) == 0:
        return dims.zeros(shape, x.dtype)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=_windows(x, axes, indices[0].ndim, position),
        collapsed_slice_dims=tuple(sorted(axes)),
        start_index_map=tuple(axes),
    )
    sizes = tuple(1 if d in axes else s for d, s in enumerate(x.shape))
    return lax.gather(x, _joined(indices), numbers, sizes, mode=_PROMISE)


def put_blocks(
    x: jax.Array, axes: Sequence[int], indices: Sequence[jax.Array], position: int
) -> Put:
    """The writer for the blocks that `take_blocks` reads.

    A single block, such as a token's keys in a cache, is written as a slice: a TPU does that in
    place, and a scatter through all of the operand.
    """
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=_windows(x, axes, indices[0].ndim, position),
        inserted_window_dims=tuple(sorted(axes)),
        scatter_dims_to_operand_dims=tuple(axes),
    )
    joined = _joined(indices)
    shape = block_shape(x, axes, indices[0].shape, position)

    def put(x: jax.Array, updates: jax.Array, how: str) -> jax.Array:
        updates = jnp.broadcast_to(updates, shape)
        if how == "set" and indices[0].size == 1 and x.size > 0:
            return _put_one(x, axes, indices, updates)
        return _scatter(x, joined, updates, numbers, how)

    return put


def _put_one(
    x: jax.Array, axes: Sequence[int], indices: Sequence[jax.Array], updates: jax.Array
) -> jax.Array:
    zero = np.zeros((), indices[0].dtype)
    where = dict(zip(axes, (lax.reshape(i, ()) for i in indices), strict=True))
    starts = [where.get(d, zero) for d in range(x.ndim)]
    sizes = tuple(1 if d in where else s for d, s in enumerate(x.shape))
    block = lax.reshape(updates.astype(x.dtype), sizes)
    return lax.dynamic_update_slice(x, block, [s.astype(np.int64) for s in starts])


def take_elements(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """``out[i, j, k] = x[index[i, j, k], j, k]`` for `dim` 0; `index` may be the smaller one."""
    if index.size == 0 or x.size == 0:
        return dims.zeros(index.shape, x.dtype)
    if _has_one_for_each_row(x, dim, index):
        picked = jnp.where(_hit(x, dim, index), x, np.zeros((), x.dtype))
        return (
            jnp.any(picked, dim, keepdims=True)
            if x.dtype == np.bool_
            else jnp.sum(picked, dim, dtype=x.dtype, keepdims=True)
        )
    rest = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=rest,
        start_indices_batching_dims=rest,
    )
    region = _region(x, dim, index.shape)
    return lax.gather(region, _joined([index]), numbers, (1,) * x.ndim, mode=_PROMISE)


def put_elements(dim: int, index: jax.Array) -> Put:
    """The writer for the elements that `take_elements` reads."""
    rest = tuple(d for d in range(index.ndim) if d != dim)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=rest,
        scatter_indices_batching_dims=rest,
    )
    joined = _joined([index])

    def put(x: jax.Array, updates: jax.Array, how: str) -> jax.Array:
        if x.dtype != np.bool_ and _has_one_for_each_row(x, dim, index):
            changed = _COMBINED[how](x, updates.astype(x.dtype))
            return jnp.where(_hit(x, dim, index), changed, x)
        region = _region(x, dim, index.shape)
        updates = jnp.broadcast_to(updates, index.shape)
        updated = _scatter(region, joined, updates, numbers, how)
        if region.shape == x.shape:
            return updated
        return lax.dynamic_update_slice(x, updated, (0,) * x.ndim)

    return put


def _has_one_for_each_row(x: jax.Array, dim: int, index: jax.Array) -> bool:
    """Whether a TPU compares each row with its one index."""
    rows = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    return mxu.lowers_for("tpu") and x.ndim > 1 and index.shape == rows


def _hit(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Where the elements are that `index` names, one in each row."""
    return lax.broadcasted_iota(index.dtype, x.shape, dim) == index


def _region(x: jax.Array, dim: int, shape: Sequence[int]) -> jax.Array:
    """The leading part of `x` that an index of `shape` can address along `dim`."""
    limits = [s if d == dim else shape[d] for d, s in enumerate(x.shape)]
    return x if tuple(limits) == x.shape else lax.slice(x, (0,) * x.ndim, limits)


def _scatter(
    x: jax.Array,
    index: jax.Array,
    updates: jax.Array,
    numbers: lax.ScatterDimensionNumbers,
    how: str,
) -> jax.Array:
    if updates.size == 0 or x.size == 0:
        return x
    if x.dtype == np.bool_ and how != "set":
        whole = _scatter(
            x.astype(np.uint8), index, updates.astype(np.uint8), numbers, _ON_BOOL[how]
        )
        return whole.astype(np.bool_)
    return _SCATTERS[how](x, index, updates.astype(x.dtype), numbers, mode=_PROMISE)


def accumulate(x: jax.Array, updates: jax.Array, how: str, put: Put) -> jax.Array:
    """`put` in the dtype PyTorch accumulates in (float32 for 16-bit floats)."""
    compute = dtypes.opmath(x.dtype)
    return put(x.astype(compute), updates.astype(compute), how).astype(x.dtype)


def _identity(dtype: np.dtype, how: str) -> np.ndarray:
    """The neutral element of a reduction in `dtype`."""
    if how in ("sum", "mean", "prod"):
        return np.array(1 if how == "prod" else 0, dtype)
    sign = 1 if how == "amin" else -1
    if dtypes.is_floating(dtype):
        return np.array(sign * np.inf, dtype)
    if dtype == np.bool_:
        return np.array(sign > 0)
    limits = np.iinfo(dtype)
    return np.array(limits.max if sign > 0 else limits.min, dtype)


def reduce_into(
    x: jax.Array, updates: jax.Array, how: str, put: Put, *, include_self: bool
) -> jax.Array:
    """``scatter_reduce``: sum, prod, mean, amax or amin of `updates` at the addresses of `put`.

    Args:
        x: the tensor written into.
        updates: values, in the shape of the addresses.
        how: the reduction.
        put: the writer.
        include_self: whether the old value of a written element takes part.
    """
    if updates.size == 0 or x.size == 0:
        return x
    compute = dtypes.opmath(x.dtype)
    wide, updates = x.astype(compute), updates.astype(compute)
    if not include_self:
        wide = put(wide, jnp.asarray(_identity(compute, how)), "set")
    if how != "mean":
        return put(wide, updates, how).astype(x.dtype)
    total = put(wide, updates, "sum")
    start = lax.full(x.shape, np.array(1 if include_self else 0, compute))
    count = put(start, jnp.ones((), compute), "sum")
    count = jnp.maximum(count, np.array(1, compute)) if not include_self else count
    if dtypes.is_inexact(compute):
        return (total / count).astype(x.dtype)
    return jnp.floor_divide(total, count).astype(x.dtype)
