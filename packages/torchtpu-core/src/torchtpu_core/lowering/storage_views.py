# SPDX-License-Identifier: Apache-2.0
"""Reading and writing a storage's value through a tensor's strides.

C++ decides how a view lies in the value (`csrc/geometry.h`, `Plan`) and passes the
plan; here it becomes reshape, slice, transpose and broadcast, or a gather in the
general case. Starts are run-time operands, so a moving window compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, layout


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and strides (in elements) under which a value is kept, and its dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def memory_order(self) -> tuple[int, ...]:
        """Dims from the outermost in memory to the innermost."""
        return tuple(
            sorted(range(len(self.sizes)), key=lambda d: (-self.strides[d], -self.sizes[d], d))
        )

    @property
    def row_major(self) -> bool:
        """Whether the strides are those of a contiguous tensor."""
        moving = [d for d in range(len(self.sizes)) if self.sizes[d] != 1]
        order = [d for d in self.memory_order if self.sizes[d] != 1]
        return moving == order


@dataclass(frozen=True, slots=True)
class Plan:
    """How a view lies in a value; the fields are those of `Plan` in ``csrc/geometry.h``."""

    kind: str
    radix: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    starts: int = 0
    front: tuple[bool, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """View dims of the box's axes, in memory order."""
        return tuple(dim for dim in self.order if dim >= 0)


def read(
    value: jax.Array | None,
    base: Geometry | None,
    view: Geometry,
    plan: Plan,
    starts: Sequence[jax.Array],
) -> jax.Array:
    """The view's elements, in the view's shape.

    Args:
        value: the storage's value, `base.sizes`; None if nothing was written.
        base: the geometry of `value`.
        view: the tensor's sizes, strides and dtype.
        plan: how the view lies in the value.
        starts: 0-d integer arrays, one per run-time start of the plan.
    """
    dtype = dtypes.to_numpy(view.dtype)
    if value is None or base is None or plan.kind == "unset":
        return jnp.zeros(view.sizes, dtype)
    if plan.kind == "identity":
        return value
    if plan.kind == "gather":
        flat = reinterpret(_flat(value, base), dtype)
        return flat.at[_addresses(view, starts[0])].get(mode="promise_in_bounds")
    boxed = _boxed(value, base, plan, dtype)
    boxed = layout.cut(boxed, starts, plan.extents)
    return _from_box(boxed, view, plan)


def write(
    value: jax.Array | None,
    base: Geometry,
    view: Geometry,
    plan: Plan,
    starts: Sequence[jax.Array],
    update: jax.Array,
    in_place: bool = True,
) -> jax.Array:
    """`value` with the view's elements replaced by `update` (`view.sizes`).

    Args:
        value: the storage's value, `base.sizes`; None if nothing was written.
        base: the geometry of `value`.
        view: the written tensor's sizes, strides and dtype.
        plan: how the view lies in the value.
        starts: 0-d integer arrays, one per run-time start of the plan.
        update: what is written.
        in_place: XLA may write into `value`'s buffer; if not, the result is chosen element
            by element from both.
    """
    dtype = dtypes.to_numpy(view.dtype)
    if value is None:
        value = jnp.zeros(base.sizes, dtypes.to_numpy(base.dtype))
    if plan.kind == "identity":
        return update
    if plan.kind == "gather":
        flat = reinterpret(_flat(value, base), dtype)
        flat = flat.at[_addresses(view, starts[0])].set(update, mode="promise_in_bounds")
        return _unflat(reinterpret(flat, dtypes.to_numpy(base.dtype)), base)
    boxed = _boxed(value, base, plan, dtype)
    box = _to_box(update, plan)
    boxed = box if box.shape == boxed.shape else _replaced(boxed, box, starts, in_place)
    count = math.prod(base.sizes) * base.dtype.itemsize // view.dtype.itemsize
    flat = lax.slice(boxed.reshape(-1), (0,), (count,)) if boxed.size != count else boxed
    return _unflat(reinterpret(flat.reshape(-1), dtypes.to_numpy(base.dtype)), base)


def _replaced(
    boxed: jax.Array, box: jax.Array, starts: Sequence[jax.Array], in_place: bool
) -> jax.Array:
    if in_place:
        return lax.dynamic_update_slice(boxed, box, starts, allow_negative_indices=False)
    placed = lax.dynamic_update_slice(
        lax.full_like(boxed, 0), box, starts, allow_negative_indices=False
    )
    inside = lax.full(boxed.shape, True)
    for dim, (start, extent) in enumerate(zip(starts, box.shape, strict=True)):
        place = lax.broadcasted_iota(start.dtype, boxed.shape, dim)
        inside &= (place >= start) & (place < start + extent)
    return lax.select(inside, placed, boxed)


def reinterpret(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """The bytes of a 1-D array as another dtype."""
    if flat.dtype == dtype:
        return flat
    if flat.dtype == np.bool_:
        return reinterpret(flat.astype(np.uint8), dtype)
    if dtype == np.bool_:
        return reinterpret(flat, np.dtype(np.uint8)) != 0
    if dtypes.is_complex(flat.dtype):
        parts = jnp.stack([lax.real(flat), lax.imag(flat)], axis=-1).reshape(-1)
        return reinterpret(parts, dtype)
    if dtypes.is_complex(dtype):
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        pairs = reinterpret(flat, part).reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    ratio = np.dtype(dtype).itemsize // flat.dtype.itemsize
    if ratio > 1:
        flat = flat.reshape(-1, ratio)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


def _flat(value: jax.Array, base: Geometry) -> jax.Array:
    if not base.row_major:
        value = lax.transpose(value, base.memory_order)
    return value.reshape(-1)


def _unflat(flat: jax.Array, base: Geometry) -> jax.Array:
    if base.row_major:
        return flat.reshape(base.sizes)
    order = base.memory_order
    in_memory = flat.reshape([base.sizes[d] for d in order])
    return lax.transpose(in_memory, tuple(np.argsort(order).tolist()))


def _boxed(value: jax.Array, base: Geometry, plan: Plan, dtype: np.dtype) -> jax.Array:
    """The storage's elements, padded and shaped as the plan's radix."""
    if value.dtype == dtype and base.row_major and value.size == math.prod(plan.radix):
        return layout.reshaped(value, plan.radix)
    flat = reinterpret(_flat(value, base), dtype)
    missing = math.prod(plan.radix) - flat.size
    if missing:
        flat = lax.pad(flat, jnp.zeros((), dtype), ((0, missing, 0),))
    return flat.reshape(plan.radix)


def _from_box(box: jax.Array, view: Geometry, plan: Plan) -> jax.Array:
    kept = plan.kept
    box = layout.reshaped(box, [view.sizes[d] for d in kept])
    box = layout.permuted(box, np.argsort(kept).tolist())
    if box.shape == view.sizes:
        return box
    if box.size == math.prod(view.sizes):
        return layout.reshaped(box, view.sizes)
    return lax.broadcast_in_dim(box, view.sizes, sorted(kept))


def _to_box(update: jax.Array, plan: Plan) -> jax.Array:
    kept = plan.kept
    for dim, extent in enumerate(update.shape):
        if extent > 1 and dim not in kept:  # its elements share memory, and hold one value
            update = lax.slice_in_dim(update, 0, 1, axis=dim)
    inner = update.reshape([update.shape[d] for d in sorted(kept)])
    ranks = np.argsort(np.argsort(kept)).tolist()
    return lax.transpose(inner, ranks).reshape(plan.extents)


def _addresses(view: Geometry, offset: jax.Array) -> jax.Array:
    """Storage element of each view element, `view.sizes`, int64."""
    address = jnp.broadcast_to(offset.astype(np.int64), view.sizes)
    for dim, (size, stride) in enumerate(zip(view.sizes, view.strides, strict=True)):
        if size > 1 and stride:
            address = address + lax.broadcasted_iota(np.int64, view.sizes, dim) * np.int64(stride)
    return address
