# SPDX-License-Identifier: Apache-2.0
"""Rows of an open length laid end to end in one dimension, and a dimension cut into rows.

Where a row begins depends on the true length of the rows, which only the program knows. Long rows
move whole, one after the other; short ones by an index for each place of the dimension. Neither
asks for the source of each element of the array, which costs several divisions for each.

Shapes: rows ``F`` of ``G`` places, both padded; what lies before and behind is not touched.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Fewer elements in a step cost less by their indices: a step of a loop takes about a microsecond.
_STEP = 128


def joined(array: jax.Array, axis: int, rows: jax.Array, row: jax.Array, size: int) -> jax.Array:
    """`(..., F, G, ...)` -> `(..., size, ...)`, the true rows without what is between them.

    Args:
        array: `F` is dimension `axis`.
        axis: see above.
        rows: how many rows are true.
        row: how many places of each are true.
        size: of the result.
    """
    before, (count, length), behind = _parts(array.shape, axis)
    if not _is_long(array.size, count):
        place = lax.iota(np.int64, size)
        source = place // row * length + place % row
        return jnp.take(array.reshape(*before, -1, *behind), source, axis, mode="clip")

    def add(i: jax.Array, result: jax.Array) -> jax.Array:
        piece = lax.dynamic_index_in_dim(array, i, axis, keepdims=False)
        return lax.dynamic_update_slice_in_dim(result, piece, i * row, axis)  # over padding

    room = jnp.zeros((*before, size + length, *behind), array.dtype)
    result = lax.fori_loop(np.int64(0), rows, add, room)
    return lax.slice_in_dim(result, 0, size, axis=axis)


def parted(
    array: jax.Array, axis: int, rows: jax.Array, row: jax.Array, shape: tuple[int, int]
) -> jax.Array:
    """`(..., size, ...)` -> `(..., F, G, ...)`, the inverse of `joined` for ``shape == (F, G)``."""
    before, behind = array.shape[:axis], array.shape[axis + 1 :]
    count, length = shape
    if not _is_long(array.size, count):
        place = lax.iota(np.int64, count)[:, None] * row + lax.iota(np.int64, length)
        return jnp.take(array, place, axis, mode="clip")
    room = jnp.zeros((*before, length, *behind), array.dtype)
    longer = lax.concatenate([array, room], axis)

    def add(i: jax.Array, result: jax.Array) -> jax.Array:
        piece = lax.dynamic_slice_in_dim(longer, i * row, length, axis)
        return lax.dynamic_update_index_in_dim(result, piece, i, axis)

    room = jnp.zeros((*before, count, length, *behind), array.dtype)
    return lax.fori_loop(np.int64(0), rows, add, room)


def _parts(
    shape: tuple[int, ...], axis: int
) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...]]:
    return shape[:axis], (shape[axis], shape[axis + 1]), shape[axis + 2 :]


def _is_long(elements: int, rows: int) -> bool:
    """Whether a row has so many elements that moving it takes longer than the step does."""
    return elements >= _STEP * rows
