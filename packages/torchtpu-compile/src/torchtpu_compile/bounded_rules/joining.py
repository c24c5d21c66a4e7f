# SPDX-License-Identifier: Apache-2.0
"""Rules for joining tensors and for writing one into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import cast

from torchtpu_compile.aligned import align, elementwise
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, fitted, number
from torchtpu_compile.bounded_rules.pieces import first_of
from torchtpu_compile.padded import Padded, is_padded, padded_size, same_dim, true_size
from torchtpu_compile.symbols import expression


def _cat(call: Call) -> Padded:
    parts = [p for p in call.args[0] if not (len(p.dims) == 1 and p.array.size == 0)]
    dim = dim_of(parts[0], call.arg("dim"))
    others = [d for d in range(len(parts[0].dims)) if d != dim]
    alike = all(same_dim(p.dims[d], parts[0].dims[d]) for p in parts for d in others)
    if not alike or any(len(p.dims[dim]) > 1 for p in parts):
        parts = _with_equal_room([call.sizes.compact(p) for p in parts], others)
    dtype = dtypes.to_numpy(call.node.meta["val"].dtype)
    arrays = [cast(p.array, dtype) for p in parts]
    expr = call.exprs()[dim]
    dims = (*parts[0].dims[:dim], call.sizes.dim(expr), *parts[0].dims[dim + 1 :])
    room = list(arrays[0].shape)
    room[dim] = padded_size(dims[dim])
    if not any(is_padded(p.dims[dim]) for p in parts[:-1]):
        return Padded(fitted(lax.concatenate(arrays, dim), room), dims)
    shape = list(room)
    shape[dim] = max(room[dim], sum(a.shape[dim] for a in arrays))
    whole, at = jnp.zeros(shape, dtype), jnp.zeros((), np.int64)
    for part, array in zip(parts, arrays, strict=True):
        # Each part overwrites the padding of the one before it.
        whole = lax.dynamic_update_slice_in_dim(whole, array, at, dim)
        at = at + call.sizes.true(true_size(part.dims[dim]))
    return Padded(fitted(whole, room), dims)


def _with_equal_room(parts: list[Padded], dims: Sequence[int]) -> list[Padded]:
    """Parts cut to the smallest padded sizes along `dims`: their true sizes are equal there."""
    for d in dims:
        least = min(parts, key=lambda p: p.array.shape[d])
        room, dim = least.array.shape[d], least.dims[d]
        parts = [
            Padded(lax.slice_in_dim(p.array, 0, room, axis=d), (*p.dims[:d], dim, *p.dims[d + 1 :]))
            for p in parts
        ]
    return parts


def _stack(call: Call) -> Padded:
    parts = align(call.sizes, call.args[0])
    dim = call.arg("dim")
    dim = dim + len(parts[0].dims) + 1 if dim < 0 else dim
    dims = parts[0].dims
    array = jnp.stack([p.array for p in parts], axis=dim)
    return Padded(array, (*dims[:dim], call.sizes.dim(len(parts)), *dims[dim:]))


def _pad(call: Call) -> Padded:
    x, widths, value = call.sizes.compact(call.args[0]), call.args[1], call.arg("value")
    fill = number(call, 0 if value is None else value, x.array.dtype)
    if any(not isinstance(w, int) or w < 0 for w in widths):
        return _pad_by_numbers(call, x, widths, fill)
    config = [(0, 0)] * len(x.dims)
    for i in range(len(widths) // 2):
        config[-1 - i] = (widths[2 * i], widths[2 * i + 1])
    touched = [d for d, pair in enumerate(config) if pair != (0, 0)]
    x = call.sizes.filled(x, fill, touched)
    array = jnp.pad(x.array, config, constant_values=fill)
    dims = list(x.dims)
    for d in touched:
        dims[d] = call.sizes.dim(call.exprs()[d])
    return Padded(array, tuple(dims))


def _pad_by_numbers(call: Call, x: Padded, widths: Sequence[Any], fill: jax.Array) -> Padded:
    """Padding by amounts that are known when the program runs, or that cut."""
    array, dims = x.array, list(x.dims)
    for i in range(len(widths) // 2):
        if tuple(widths[2 * i : 2 * i + 2]) == (0, 0):
            continue
        d = len(dims) - 1 - i
        size = call.sizes.true(true_size(dims[d]))
        dims[d] = call.sizes.dim(call.exprs()[d])
        place = jnp.arange(padded_size(dims[d])) - call.sizes.true(expression(widths[2 * i]))
        lane = (-1,) + (1,) * (len(dims) - d - 1)
        inside = ((place >= 0) & (place < size)).reshape(lane)
        array = jnp.where(inside, jnp.take(array, place, axis=d, mode="clip"), fill)
    return Padded(array, tuple(dims))


def _replicated_backward(call: Call) -> Padded:
    # aten::replication_pad2d_backward(grad_output, self, padding): each place of the border
    # adds to the true place it was copied from
    x = call.sizes.compact(call.args[1])
    grad = call.sizes.filled(call.sizes.compact(call.args[0]), 0).array
    for i in range(len(call.args[2]) // 2):
        dim = len(x.dims) - 1 - i
        before = call.sizes.true(expression(call.args[2][2 * i]))
        last = call.sizes.true(true_size(x.dims[dim])) - 1
        source = jnp.clip(lax.iota(np.int64, grad.shape[dim]) - before, 0, last)
        lines = jnp.moveaxis(grad, dim, 0)
        summed = jnp.zeros((x.array.shape[dim], *lines.shape[1:]), grad.dtype).at[source].add(lines)
        grad = jnp.moveaxis(summed, 0, dim)
    return Padded(grad, x.dims)


def _slice_scatter(call: Call) -> Padded:
    x, source = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[1])
    dim = dim_of(x, call.arg("dim"))
    source = _alike(source, x, dim)
    begin = first_of(call, x, dim, call.arg("start"))
    place = lax.broadcasted_iota(np.int64, x.array.shape, dim) - begin
    count = call.sizes.true(true_size(source.dims[dim]))
    if call.arg("step") != 1:
        step = call.sizes.true(expression(call.arg("step")))
        written = (place >= 0) & (place % step == 0) & (place // step < count)
        line = (jnp.arange(x.array.shape[dim]) - begin) // step
        placed = jnp.take(source.array, line, axis=dim, mode="clip")
        return Padded(jnp.where(written, placed.astype(x.array.dtype), x.array), x.dims)
    shape = list(x.array.shape)
    shape[dim] += source.array.shape[dim]
    placed = lax.dynamic_update_slice_in_dim(
        jnp.zeros(shape, x.array.dtype), source.array.astype(x.array.dtype), begin, dim
    )
    placed = lax.slice_in_dim(placed, 0, x.array.shape[dim], axis=dim)
    written = (place >= 0) & (place < count)
    return Padded(jnp.where(written, placed, x.array), x.dims)


def _into_zeros(scatter: Rule) -> Rule:
    """The backward pass of a view, with arguments like those of what writes into one."""

    def rule(call: Call) -> Any:
        grad = call.args[0]
        dims = tuple(call.sizes.dim(e) for e in call.exprs())
        zeros = jnp.zeros([padded_size(dim) for dim in dims], grad.array.dtype)
        call.args[:2] = [Padded(zeros, dims), grad]
        return scatter(call)

    return rule


def _select_scatter(call: Call) -> Padded:
    x, source = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[1])
    dim, index = dim_of(x, call.args[2]), call.sizes.true(expression(call.args[3]))
    index = jnp.where(index < 0, index + call.sizes.true(true_size(x.dims[dim])), index)
    here = lax.broadcasted_iota(np.int64, x.array.shape, dim) == index
    wide = Padded(jnp.expand_dims(source.array, dim), (*source.dims[:dim], (), *source.dims[dim:]))
    return Padded(jnp.where(here, _alike(wide, x, dim).array, x.array), x.dims)


def _alike(source: Padded, x: Padded, dim: int) -> Padded:
    """`source` with the room of `x` in all dimensions but one; true sizes are equal there."""
    shape = list(x.array.shape)
    shape[dim] = source.array.shape[dim]
    dims = tuple(
        s if d == dim else t for d, (s, t) in enumerate(zip(source.dims, x.dims, strict=True))
    )
    return Padded(fitted(source.array, shape), dims)


RULES: Mapping[str, Rule] = {
    "aten::copy": elementwise,
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::constant_pad_nd": _pad,
    **{f"aten::replication_pad{n}d_backward": _replicated_backward for n in (1, 2, 3)},
    "aten::slice_scatter": _slice_scatter,
    "aten::select_scatter": _select_scatter,
    "aten::slice_backward": _into_zeros(_slice_scatter),
    "aten::select_backward": _into_zeros(_select_scatter),
}
