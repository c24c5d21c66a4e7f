# SPDX-License-Identifier: Apache-2.0
"""Rules for ops that rearrange dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sympy import sympify

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, fitted, number
from torchtpu_compile.bounded_rules.pieces import position
from torchtpu_compile.padded import Padded, is_padded, normal, padded_size, true_size
from torchtpu_compile.symbols import same


def _reshape(call: Call) -> Padded:
    return call.sizes.reshaped(call.args[0], call.exprs())


def _permuted(x: Padded, order: Sequence[int]) -> Padded:
    return Padded(jnp.transpose(x.array, order), tuple(x.dims[d] for d in order))


def _permute(call: Call) -> Padded:
    x = call.args[0]
    return _permuted(x, [dim_of(x, d) for d in call.args[1]])


def _transpose(call: Call) -> Padded:
    x = call.args[0]
    order = list(range(len(x.dims)))
    if call.node.target._schema.name.endswith("::t"):  # type: ignore[union-attr]
        return _permuted(x, order[::-1])
    a, b = dim_of(x, call.args[1]), dim_of(x, call.args[2])
    order[a], order[b] = order[b], order[a]
    return _permuted(x, order)


def _unsqueeze(call: Call) -> Padded:
    x, dim = call.args[0], call.args[1]
    dim = dim + len(x.dims) + 1 if dim < 0 else dim
    return Padded(jnp.expand_dims(x.array, dim), (*x.dims[:dim], (), *x.dims[dim:]))


def _squeeze(call: Call) -> Padded:
    x = call.args[0]
    wanted = call.args[1] if len(call.args) > 1 else range(len(x.dims))
    wanted = [wanted] if isinstance(wanted, int) else wanted
    gone = [d for d in (dim_of(x, w) for w in wanted) if x.dims[d] == ()]
    dims = tuple(dim for d, dim in enumerate(x.dims) if d not in gone)
    return Padded(jnp.squeeze(x.array, tuple(gone)), dims)


def _expand(call: Call) -> Padded:
    x, exprs = call.args[0], call.exprs()
    extra = len(exprs) - len(x.dims)
    dims = []
    for d, expr in enumerate(exprs):
        kept = x.dims[d - extra] if d >= extra else ()
        dims.append(kept if same(true_size(kept), expr) else call.sizes.dim(expr))
    shape = [padded_size(dim) for dim in dims]
    return Padded(jnp.broadcast_to(x.array, shape), tuple(dims))


def _select(call: Call) -> Padded:
    x, dim, index = call.args[0], dim_of(call.args[0], call.args[1]), call.args[2]
    dims = (*x.dims[:dim], *x.dims[dim + 1 :])
    from_front = isinstance(index, int) and index >= 0 and len(x.dims[dim]) <= 1
    if isinstance(index, int) and (from_front or not is_padded(x.dims[dim])):
        return Padded(jax.lax.index_in_dim(x.array, index, dim, keepdims=False), dims)
    x = call.sizes.compact(x)
    dims = (*x.dims[:dim], *x.dims[dim + 1 :])
    place = position(call, x, dim, index)
    return Padded(jax.lax.dynamic_index_in_dim(x.array, place, dim, keepdims=False), dims)


def _same_dims(call: Call) -> Padded:
    return Padded(call.run(), call.args[0].dims)


def _complex_view(call: Call) -> Padded:
    """Pairs of numbers as complex ones, or back; the last dimension holds the pair."""
    x, values = call.args[0], call.run()
    if values.ndim < len(x.dims):
        return Padded(values, x.dims[:-1])
    return Padded(values, (*x.dims, call.sizes.dim(2)))


def _bits(call: Call) -> Padded:
    """Numbers read as others; of another width they stay in order, more or fewer of them."""
    before, after = (node.meta["val"].dtype for node in (call.node.args[0], call.node))
    if before.itemsize == after.itemsize:
        return _same_dims(call)
    x = call.sizes.compact(call.args[0])
    together = max(1, after.itemsize // before.itemsize)
    room = -(-x.array.shape[-1] // together) * together
    call.args[0] = Padded(fitted(x.array, (*x.array.shape[:-1], room)), x.dims)
    last = call.sizes.dim(call.exprs()[-1])
    values = call.run()
    return Padded(fitted(values, (*values.shape[:-1], padded_size(last))), (*x.dims[:-1], last))


def _plain_last_two(call: Call) -> Padded:
    x = call.args[0] = call.sizes.compact(call.args[0])
    return Padded(call.run(), x.dims)


def _flip(call: Call) -> Padded:
    x = call.sizes.compact(call.args[0])
    array = x.array
    for d in (dim_of(x, d) for d in call.args[1]):
        index = call.sizes.true(true_size(x.dims[d])) - 1 - jnp.arange(array.shape[d])
        array = jnp.take(array, jnp.maximum(index, 0), axis=d)
    return Padded(array, x.dims)


def _roll(call: Call) -> Padded:
    x, shifts, dims = call.sizes.compact(call.args[0]), call.args[1], call.arg("dims")
    if not dims:
        return call.sizes.reshaped(_rolled(call, call.sizes.flat(x), 0, shifts[0]), call.exprs())
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(call, x, dim_of(x, dim), shift)
    return x


def _rolled(call: Call, x: Padded, dim: int, shift: Any) -> Padded:
    size = call.sizes.true(true_size(x.dims[dim]))
    source = jnp.arange(x.array.shape[dim]) - number(call, shift, np.int64)
    return Padded(jnp.take(x.array, source % size, axis=dim, mode="clip"), x.dims)


def _repeat(call: Call) -> Padded:
    """How often a dimension is repeated is one more factor of it, the outermost."""
    x, times = call.args[0], call.args[1]
    extra = len(times) - len(x.dims)
    array = x.array.reshape((1,) * extra + x.array.shape)
    counts = [call.sizes.dim(n) for n in times]
    dims = (normal((*n, *dim)) for n, dim in zip(counts, ((),) * extra + x.dims, strict=True))
    return Padded(jnp.tile(array, [padded_size(n) for n in counts]), tuple(dims))


def _shuffle(call: Call) -> Padded:
    """Parts of channels become places of an image, or places channels."""
    x, exprs, factor = call.args[0], call.exprs(), call.args[1]
    lead, (channels, height, width) = exprs[:-3], exprs[-3:]
    first = len(lead)
    places = [height, factor, width, factor]
    if call.node.target._schema.name.endswith("pixel_shuffle"):  # type: ignore[union-attr]
        parts = [*lead, channels, factor, factor, *(true_size(d) for d in x.dims[-2:])]
        order = (0, 3, 1, 4, 2)
    else:
        parts = [*lead, true_size(x.dims[-3]), *places]
        order = (0, 2, 4, 1, 3)
    x = call.sizes.reshaped(x, [sympify(n) for n in parts])
    x = _permuted(x, [*range(first), *(first + d for d in order)])
    return call.sizes.reshaped(x, exprs)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::view_copy"), _reshape
    ),
    "aten::permute": _permute,
    "aten::transpose.int": _transpose,
    "aten::t": _transpose,
    "aten::unsqueeze": _unsqueeze,
    **dict.fromkeys(("aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims"), _squeeze),
    "aten::expand": _expand,
    "aten::select.int": _select,
    **dict.fromkeys(
        (
            "aten::clone",
            "aten::detach",
            "aten::alias",
            "aten::lift_fresh_copy",
            "aten::_to_copy",
            "aten::contiguous",
            "prims::convert_element_type",
            "prims::inductor_force_stride_order",
        ),
        _same_dims,
    ),
    **dict.fromkeys(("aten::tril", "aten::triu"), _plain_last_two),
    **dict.fromkeys(("aten::view_as_complex", "aten::view_as_real"), _complex_view),
    "aten::view.dtype": _bits,
    "aten::flip": _flip,
    "aten::roll": _roll,
    "aten::repeat": _repeat,
    **dict.fromkeys(("aten::pixel_shuffle", "aten::pixel_unshuffle"), _shuffle),
}
