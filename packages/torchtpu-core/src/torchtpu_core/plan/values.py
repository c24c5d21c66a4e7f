# SPDX-License-Identifier: Apache-2.0
"""The values of storages while a step becomes one program: reads and writes through views.

A storage's value is kept in the shape in which it was last written whole, so that reading it
so costs nothing; other views become reshape, slice, transpose and broadcast, and a gather
only where no box of the storage is the view.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, layout, view_ops
from torchtpu_core.plan.calls import Place
from torchtpu_core.runtime import recomputation


@dataclass(slots=True)
class Kept:
    """A storage's value: an array and the strides under which it lies in memory."""

    array: jax.Array
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_row_major(self) -> bool:
        """Whether it lies in memory as its dimensions are numbered."""
        return is_row_major(self.array.shape, self.strides)


class Values:
    """Values by storage number."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        # Parts of storages of which nothing else was written, as FSDP's copy-in makes them.
        self._parts: dict[int, list[tuple[Place, jax.Array]]] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._kept or storage in self._parts

    def set(self, place: Place, array: jax.Array) -> None:
        """A whole storage gets a value."""
        self._parts.pop(place.storage, None)
        self._kept[place.storage] = Kept(array, place.strides, place.dtype)

    def array(self, storage: int) -> jax.Array:
        """The array that is kept for a storage."""
        if storage not in self._kept:
            self._join(storage)
        return self._kept[storage].array

    def read(self, place: Place) -> jax.Array:
        """The value of a view; zeros if nothing was written."""
        kept = self._kept.get(place.storage)
        if kept is None:
            for part, value in self._parts.get(place.storage, ()):
                if part == place:
                    return value
            self._join(place.storage)
            kept = self._kept.get(place.storage)
        if kept is None:
            return jnp.zeros(place.sizes, dtypes.to_numpy(place.dtype))
        same = kept.dtype == place.dtype and tuple(kept.array.shape) == place.sizes
        if same and _alike(kept.strides, place.strides, place.sizes) and not place.offset:
            return kept.array
        if kept.dtype == place.dtype and kept.array.size == place.elements and kept.is_row_major:
            return _view(kept.array, place, kept.array.ndim == 1)
        return _view(self._flat(place), place, kept.array.ndim == 1)

    def write(self, place: Place, value: jax.Array) -> None:
        """A view gets a value, and with it the storage."""
        dtype = dtypes.to_numpy(place.dtype)
        if value.dtype != dtype or value.shape != place.sizes:
            value = jnp.broadcast_to(value.astype(dtype), place.sizes)
        if is_whole(place):
            self.set(place, value)
            return
        if place.storage not in self._kept:
            parts = self._parts.setdefault(place.storage, [])
            parts[:] = [(part, old) for part, old in parts if part != place]
            parts.append((place, value))
            return
        self._update(place, value)

    def hold_back(self, storages: Iterable[int], after: Iterable[int]) -> None:
        """Values of storages are as if they were known only after those of others."""
        held = [self._kept[one] for one in storages if one in self._kept]
        known = [self._kept[one].array for one in after if one in self._kept]
        arrays = recomputation.late([kept.array for kept in held], known)
        for kept, array in zip(held, arrays, strict=True):
            kept.array = array

    def tie(self, storages: Iterable[int]) -> None:
        """Values of storages are as if they were known only together."""
        kept = [self._kept[one] for one in storages if one in self._kept]
        arrays = jax.lax.optimization_barrier([one.array for one in kept])
        for one, array in zip(kept, arrays, strict=True):
            one.array = array

    def _join(self, storage: int) -> None:
        """The parts of a storage become its value."""
        parts = self._parts.pop(storage, [])
        if parts:
            first = parts[0][0]
            whole = Place(storage, (first.elements,), (1,), 0, first.dtype, first.elements)
            self.set(whole, jnp.zeros(whole.sizes, dtypes.to_numpy(first.dtype)))
        for place, value in parts:
            self._update(place, value)

    def _update(self, place: Place, value: jax.Array) -> None:
        """A view of a storage that has a value gets another."""
        flat = self._flat(place)
        kept = self._kept.get(place.storage)
        flat = _updated(flat, place, value, kept is None or kept.array.ndim == 1)
        if kept is not None and kept.dtype == place.dtype:
            # Keep the shape in which others read it.
            whole = Place(
                place.storage, tuple(kept.array.shape), kept.strides, 0, place.dtype, flat.size
            )
            if is_whole(whole):
                self.set(whole, _view(flat, whole))
                return
        self.set(Place(place.storage, (flat.size,), (1,), 0, place.dtype, flat.size), flat)

    def _flat(self, place: Place) -> jax.Array:
        """A storage as one dimension of elements of the view's type."""
        kept = self._kept.get(place.storage)
        if kept is None:
            return jnp.zeros((place.elements,), dtypes.to_numpy(place.dtype))
        order = sorted(range(kept.array.ndim), key=lambda d: (-kept.strides[d], d))
        flat = lax.reshape(lax.transpose(kept.array, order), (kept.array.size,))
        if kept.dtype != place.dtype:
            flat = view_ops.view_dtype(flat, place.dtype)
        if flat.size < place.elements:
            flat = jnp.pad(flat, (0, place.elements - flat.size))
        return flat


def is_whole(place: Place) -> bool:
    """Whether a view is all of its storage, each element once."""
    if math.prod(place.sizes) != place.elements or place.offset:
        return False
    expected = 1
    for d in sorted(range(len(place.sizes)), key=lambda d: (place.strides[d], d)):
        if place.sizes[d] == 1:
            continue
        if place.strides[d] != expected:
            return False
        expected *= place.sizes[d]
    return True


def is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the dimensions of a whole storage are numbered in the order of memory."""
    moving = [step for size, step in zip(sizes, strides, strict=True) if size != 1]
    return all(a > b for a, b in itertools.pairwise(moving))


def _alike(a: Sequence[int], b: Sequence[int], sizes: Sequence[int]) -> bool:
    return all(s == 1 or x == y for x, y, s in zip(a, b, sizes, strict=True))


def _view(flat: jax.Array, place: Place, kept_flat: bool = False) -> jax.Array:
    """A view of a storage's elements in the order of memory, whatever their shape.

    Of one that is kept flat, rows are taken flat: as boxes of narrow dimensions, such as a kernel's
    taps, all of it would be padded to tiles.
    """
    if math.prod(place.sizes) == 0:
        return jnp.zeros(place.sizes, flat.dtype)
    joined, box = _whole_dims(place), _box(flat.size, place)
    # Also if there is none, as of rows that are no multiple of their parts.
    if (box is None or kept_flat) and len(joined.sizes) < len(place.sizes):
        return layout.reshaped(_view(flat, joined, kept_flat), place.sizes)
    if box is None:
        return view_ops.as_strided(flat.reshape(-1), place.sizes, place.strides, place.offset)
    radix, starts, order = box
    extents = [*(place.sizes[d] for d in order), 1][: len(radix)]
    radix, starts, extents = _cut_along(flat.shape, radix, starts, extents)
    taken = layout.cut(_reshaped(flat, radix), starts, extents)
    taken = layout.reshaped(taken, [place.sizes[d] for d in order])
    ascending = sorted(order)
    taken = layout.permuted(taken, [order.index(d) for d in ascending])
    if taken.shape == place.sizes:
        return taken
    return lax.broadcast_in_dim(taken, place.sizes, tuple(ascending))


def _whole_dims(place: Place) -> Place:
    """The view with each two dimensions as one that lie in memory as one."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(place.sizes, place.strides, strict=True):
        if dims and dims[-1][1] == size * stride:
            size *= dims.pop()[0]
        dims.append((size, stride))
    return replace(place, sizes=tuple(n for n, _ in dims), strides=tuple(s for _, s in dims))


def _updated(flat: jax.Array, place: Place, value: jax.Array, kept_flat: bool) -> jax.Array:
    """A storage of one dimension, a view of it written."""
    joined, box = _whole_dims(place), _box(flat.size, place)
    if (box is None or kept_flat) and len(joined.sizes) < len(place.sizes):
        return _updated(flat, joined, layout.reshaped(value, joined.sizes), kept_flat)
    if box is None or len(box[2]) != sum(s > 1 for s in place.sizes):
        positions = view_ops.strided_positions(place.sizes, place.strides, place.offset)
        return flat.at[positions.reshape(-1)].set(value.reshape(-1), mode="drop")
    radix, starts, order = box
    whole = _reshaped(flat, radix)
    ones = [d for d in range(len(place.sizes)) if d not in order]
    moved = lax.transpose(value, [*ones, *order])
    extents = [*(place.sizes[d] for d in order), 1][: len(radix)]
    moved = lax.reshape(moved, tuple(extents))
    indices = [np.int32(a) for a in starts]
    done = lax.dynamic_update_slice(whole, moved, indices)
    return lax.reshape(done, (done.size,))[: flat.size]


def _reshaped(flat: jax.Array, radix: Sequence[int]) -> jax.Array:
    missing = math.prod(radix) - flat.size
    return layout.reshaped(jnp.pad(flat.reshape(-1), (0, missing)) if missing else flat, radix)


def _cut_along(
    sizes: Sequence[int], radix: Sequence[int], starts: Sequence[int], extents: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """A box cut where the value's own dimensions end, if it is within one index of each.

    As in ``csrc/geometry.cpp``: a token of `[B, T, D]` is not read as one of `[B, T * D]`.
    """
    ends = list(itertools.accumulate(reversed(sizes), operator.mul))
    cut: list[tuple[int, int, int]] = []
    stride = 1
    for length, start, extent in zip(*map(reversed, (radix, starts, extents)), strict=True):
        end = stride * length
        for at in ends:
            inner, rest = divmod(at, stride)
            fits = stride < at < end and not rest and length % inner == 0
            if fits and start % inner + extent <= inner:
                cut.append((inner, start % inner, extent))
                length, start, extent, stride = length // inner, start // inner, 1, at
        cut.append((length, start, extent))
        stride = end
    found = [list(one) for one in zip(*reversed(cut), strict=True)]
    return found[0], found[1], found[2]


def _box(elements: int, place: Place) -> tuple[list[int], list[int], list[int]] | None:
    """A box of which a view is a part: its sides, where the part starts, the view's dimensions.

    None if the strides do not nest.
    """
    order = [d for d in range(len(place.sizes)) if place.sizes[d] > 1 and place.strides[d]]
    order.sort(key=lambda d: -place.strides[d])
    radix: list[int] = []
    starts: list[int] = []
    rest, offset = elements, place.offset
    for d in order:
        stride = place.strides[d]
        if rest % stride and radix:
            return None
        side = -(-rest // stride)
        if offset // stride + place.sizes[d] > side:
            return None
        radix.append(side)
        starts.append(offset // stride)
        rest, offset = stride, offset % stride
    if rest > 1 or not radix:
        radix.append(rest)
        starts.append(offset)
    return radix, starts, order


def whole_of(place: Place) -> Place:
    """The view of a whole storage in which an operand is best kept: the place's, or flat."""
    if is_whole(place):
        return place
    return Place(place.storage, (place.elements,), (1,), 0, place.dtype, place.elements)


def structure(place: Place) -> Any:
    """Shape and dtype of the array that is kept for a whole storage."""
    return jax.ShapeDtypeStruct(place.sizes, dtypes.to_numpy(place.dtype))
