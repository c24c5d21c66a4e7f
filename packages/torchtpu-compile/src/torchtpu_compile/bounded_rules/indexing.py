# SPDX-License-Identifier: Apache-2.0
"""Rules for lookups by index.

Indices in the padding are zero; negative ones count from the true end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torchtpu_core.lowering import checks, masks, promotion

from torchtpu_compile.aligned import align, joint_dims
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, fitted, refuse
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, true_size
from torchtpu_compile.symbols import same


def clean(
    call: Call,
    index: Padded,
    dim: Dim,
    *,
    negative: bool,
    by_row: bool = True,
    check: bool = True,
) -> Padded:
    """Indices into a dimension: 0 in the padding, non-negative and checked (`check`).

    Of a dimension without padding the op's row does the latter, if it runs (`by_row`).
    """
    index = call.sizes.filled(index, 0)
    if by_row and not is_padded(dim):
        return index
    size = call.sizes.true(true_size(dim)).astype(index.array.dtype)
    low = -size if negative else jnp.zeros_like(size)
    if check:
        legal = (index.array >= low) & (index.array < size)
        checks.require(legal, IndexError, "index out of range in self")
    return Padded(jnp.where(index.array < 0, index.array + size, index.array), index.dims)


def _embedding(call: Call) -> Padded:
    weight, indices = call.sizes.compact(call.args[0]), call.args[1]
    call.args[0] = weight
    call.args[1] = clean(call, indices, weight.dims[0], negative=False)
    return Padded(call.run(), (*indices.dims, *weight.dims[1:]))


def _embedding_backward(call: Call) -> Padded:
    grad, indices = call.args[0], call.args[1]
    if indices.padded_dims and call.arg("scale_grad_by_freq"):
        raise refuse(call, "counts how often each row was looked up")
    lead = grad.dims[:-1]
    flat = grad
    if len(lead) == len(indices.dims) and any(
        a != b for a, b in zip(lead, indices.dims, strict=True)
    ):
        flat, indices = call.sizes.compact(flat), call.sizes.compact(indices)
    call.args[0] = call.sizes.filled(flat, 0)
    call.args[1] = call.sizes.filled(indices, 0)
    call.set("num_weights", padded_size(call.sizes.dim(call.arg("num_weights"))))
    return call.result(call.run())


def _index(call: Call, *, check: bool = True) -> Padded:
    x = call.sizes.compact(call.args[0])
    indices = call.args[1]
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].array.dtype in (np.bool_, np.uint8) for d in used):
        raise refuse(call, "is indexed by a mask")
    aligned = align(call.sizes, [indices[d] for d in used])
    cleaned: list[Any] = [None] * len(indices)
    for d, index in zip(used, aligned, strict=True):
        cleaned[d] = clean(call, index, x.dims[d], negative=True, check=check)
    joint = joint_dims(aligned)
    call.args[:2] = [x, cleaned]
    rest = [dim for d, dim in enumerate(x.dims) if d not in used]
    consecutive = used == list(range(used[0], used[-1] + 1))
    at = used[0] if consecutive else 0
    return Padded(call.run(), (*rest[:at], *joint, *rest[at:]))


def _masked_index(call: Call) -> Padded:
    """A lookup whose indices may be anything where the mask is false."""
    x, mask, indices, fill = call.sizes.compact(call.args[0]), *call.args[1:4]
    used = [d for d, i in enumerate(indices) if i is not None]
    aligned = align(call.sizes, [indices[d] for d in used])
    places: list[Any] = [None] * len(indices)
    for d, index in zip(used, aligned, strict=True):
        places[d] = _clipped(call, index, x.dims[d])
    rest = [dim for d, dim in enumerate(x.dims) if d not in used]
    at = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    row = tuple(slice(None) if place is None else place for place in places)
    taken = Padded(x.array[row], (*rest[:at], *joint_dims(aligned), *rest[at:]))
    taken, mask = align(call.sizes, [taken, mask])
    value = promotion.cast(fill, taken.array.dtype)
    return Padded(jnp.where(mask.array, taken.array, value), joint_dims([taken, mask]))


def _clipped(call: Call, index: Padded, dim: Dim) -> jax.Array:
    """Places in a dimension, the nearest one where there is none."""
    size = call.sizes.true(true_size(dim)).astype(index.array.dtype)
    return jnp.clip(jnp.where(index.array < 0, index.array + size, index.array), 0, size - 1)


def _masked_index_add(call: Call) -> Padded:
    x, mask, indices, values = call.sizes.compact(call.args[0]), *call.args[1:4]
    values, mask = align(call.sizes, [values, mask])
    kept = Padded(
        jnp.where(mask.array, values.array, jnp.zeros((), values.array.dtype)),
        joint_dims([values, mask]),
    )
    return _written(call, x, indices, call.sizes.compact(kept), True, _clipped)


def _index_select(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.args[2]
    dim = dim_of(x, call.args[1])
    call.args[0], call.args[2] = x, clean(call, index, x.dims[dim], negative=False)
    return Padded(call.run(), (*x.dims[:dim], *index.dims, *x.dims[dim + 1 :]))


def _gather(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[2])
    dim = dim_of(x, call.args[1])
    call.args[0], call.args[2] = x, clean(call, index, x.dims[dim], negative=False)
    return Padded(call.run(), index.dims)


def _nonzero_static(call: Call) -> Padded:
    # positions along dimensions are the same with padding, and their order is too
    call.args[0] = call.sizes.filled(call.sizes.compact(call.args[0]), 0)
    call.set("size", padded_size(call.sizes.dim(call.arg("size"))))
    return call.result(call.run())


def _index_put(call: Call, *, check: bool = True) -> Padded:
    x = call.sizes.compact(call.args[0])
    indices, values = call.args[1], call.sizes.compact(call.args[2])
    adds = bool(call.arg("accumulate"))
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].array.dtype in (np.bool_, np.uint8) for d in used):
        if len(used) > 1:
            raise refuse(call, "is indexed by a mask and by something else")
        return _put_through_mask(call, x, used[0], indices[used[0]], values, adds)
    return _written(call, x, indices, values, adds, _checked if check else _clipped)


def _checked(call: Call, index: Padded, dim: Dim) -> jax.Array:
    return clean(call, index, dim, negative=True, by_row=False).array


def _written(
    call: Call,
    x: Padded,
    indices: Sequence[Padded | None],
    values: Padded,
    adds: bool,
    places_of: Callable[[Call, Padded, Dim], jax.Array],
) -> Padded:
    """`x` with `values` at indices, which `places_of` makes places of a dimension."""
    # The values are in the order of the true elements, so the indices must be too.
    given = {d: index for d, index in enumerate(indices) if index is not None}
    used = list(given)
    aligned = [call.sizes.compact(i) for i in align(call.sizes, list(given.values()))]
    places: list[Any] = [slice(None)] * len(x.dims)
    for d, index in zip(used, aligned, strict=True):
        place = places_of(call, index, x.dims[d])
        inside = call.sizes.valid(index, range(len(index.dims)))
        if inside is not None:  # what is written from the padding goes beyond the end
            place = jnp.where(inside, place, x.array.shape[d])
        places[d] = place
    target = x.array.at[tuple(places)]
    source = _spread(values, x, used, joint_dims(aligned)).astype(x.array.dtype)
    write = target.add if adds else target.set
    return Padded(write(source, mode="drop"), x.dims)


def _put_through_mask(
    call: Call, x: Padded, axis: int, mask: Padded, values: Padded, adds: bool
) -> Padded:
    """One value for all true elements of a mask, or one for each in their order."""
    mask = _covering(call, x, axis, call.sizes.filled(call.sizes.compact(mask), False))
    if mask.array.size == 0:
        return x
    behind = axis + len(mask.dims)
    at = len(values.dims) - (len(x.dims) - behind) - 1
    shape = (*x.array.shape[:axis], 0, *x.array.shape[behind:])
    ends = shape[len(shape) - len(values.dims) :]
    keeps = [i == at or dim == () for i, dim in enumerate(values.dims)]
    room = [n if k else end for n, k, end in zip(values.array.shape, keeps, ends, strict=True)]
    count = call.sizes.true(true_size(values.dims[at])) if at >= 0 else None
    source = fitted(values.array, room)
    array = masks.put_through_mask(x.array, axis, mask.array, source, adds, count)
    return Padded(array, x.dims)


def _covering(call: Call, x: Padded, axis: int, mask: Padded) -> Padded:
    """A mask, false in its padding, with as much room as the dimensions it covers.

    Those have its true sizes, or PyTorch refuses it: so that is looked at when the program runs.
    """
    covered = x.dims[axis : axis + len(mask.dims)]
    for own, dim in zip(mask.dims, covered, strict=True):
        size, wanted = true_size(own), true_size(dim)
        if not same(size, wanted):
            checks.require(
                call.sizes.true(size) == call.sizes.true(wanted),
                IndexError,
                "The shape of the mask does not match the shape of the indexed tensor",
            )
    return Padded(fitted(mask.array, [padded_size(dim) for dim in covered]), covered)


def _spread(values: Padded, x: Padded, used: list[int], joint: tuple[Dim, ...]) -> jax.Array:
    """`values` in the shape of ``x[indices]``; equal sizes may have unequal padding."""
    rest = [dim for d, dim in enumerate(x.dims) if d not in used]
    at = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    shape = [padded_size(dim) for dim in (*rest[:at], *joint, *rest[at:])]
    own = zip(values.dims, shape[len(shape) - len(values.dims) :], strict=True)
    return jnp.broadcast_to(fitted(values.array, [1 if d == () else n for d, n in own]), shape)


RULES: Mapping[str, Rule] = {
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index.Tensor": _index,
    "aten::_unsafe_index.Tensor": functools.partial(_index, check=False),
    "aten::_unsafe_masked_index": _masked_index,
    "aten::_unsafe_masked_index_put_accumulate": _masked_index_add,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::nonzero_static": _nonzero_static,
    "aten::index_put": _index_put,
    "aten::_index_put_impl": _index_put,
    "aten::_unsafe_index_put": functools.partial(_index_put, check=False),
}
