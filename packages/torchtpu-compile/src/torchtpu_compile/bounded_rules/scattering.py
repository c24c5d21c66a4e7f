# SPDX-License-Identifier: Apache-2.0
"""Rules for writes through an index along one dimension, or along all of them in order.

What the padding of an index would write goes to one more place at the end of the
dimension, which is cut off again: so every way to combine (add, multiply, mean) is the
row's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax
from torchtpu_core.lowering import checks

from torchtpu_compile.aligned import align, joint_dims
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, fitted
from torchtpu_compile.bounded_rules.indexing import clean
from torchtpu_compile.padded import Padded, padded_size, true_size


def _written(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[2])
    if not x.dims:
        return Padded(call.run(), ())
    dim = dim_of(x, call.args[1])
    size = x.array.shape[dim]
    inside = call.sizes.valid(index, range(len(index.dims)))
    places = clean(call, index, x.dims[dim], negative=False, by_row=inside is None).array
    room = list(x.array.shape)
    if inside is not None:
        room[dim] += 1
        places = jnp.where(inside, places, size)
    shape = [*room[:dim], places.size, *room[dim + 1 :]]
    if "scatter" in str(call.node.target):  # an index for each element, not for each slice
        shape = [
            n if d == dim else min(n, m)
            for d, (n, m) in enumerate(zip(places.shape, room, strict=True))
        ]
        places = fitted(places, shape)
    source = call.args[3]
    if isinstance(source, Padded) and source.dims:
        source = Padded(fitted(call.sizes.compact(source).array, shape), source.dims)
    call.args[0] = Padded(fitted(x.array, room), x.dims)
    call.args[2:4] = [Padded(places, index.dims), source]
    return Padded(lax.slice_in_dim(call.run(), 0, size, axis=dim), x.dims)


def _masked(call: Call) -> Padded:
    """``source`` in row-major order of its true data, at the true places of the mask."""
    x, mask = align(call.sizes, call.args[:2])
    source = call.sizes.flat(call.args[2])
    mask = call.sizes.filled(mask, False)
    wanted = jnp.sum(jnp.broadcast_arrays(x.array, mask.array)[1], dtype=np.int64)
    checks.require(
        wanted <= call.sizes.true(true_size(source.dims[0])),
        RuntimeError,
        "Number of elements of source < number of ones in mask",
    )
    call.args[:3] = [x, mask, source]
    return Padded(call.run(), joint_dims([x, mask]))


def _masked_backward(call: Call) -> Padded:
    # aten::masked_scatter_backward(grad_output, mask, sizes): what each element of the source
    # became, in order, zeros behind
    grad, mask = align(call.sizes, call.args[:2])
    whole = Padded(jnp.broadcast_to(mask.array, grad.array.shape), grad.dims)
    flat = call.sizes.flat(grad).array
    chosen = call.sizes.filled(call.sizes.flat(whole), False).array.astype(bool)
    exprs = call.exprs()
    line = call.sizes.dim(sympy.Mul(*exprs))
    place = jnp.where(chosen, jnp.cumsum(chosen) - 1, padded_size(line))
    source = jnp.zeros((padded_size(line),), flat.dtype).at[place].set(flat, mode="drop")
    return call.sizes.reshaped(Padded(source, (line,)), exprs)


def _put(call: Call) -> Padded:
    # aten::put(self, index, source, accumulate): places count along the true data, in order
    x = call.args[0]
    line, index, source = (call.sizes.flat(a) for a in call.args[:3])
    size = line.array.shape[0]
    places = clean(call, index, line.dims[0], negative=True, by_row=False).array
    inside = call.sizes.valid(index, [0])
    if inside is not None:
        places = jnp.where(inside, places, size)
    target = line.array.at[places]
    write = target.add if call.arg("accumulate") else target.set
    values = fitted(source.array, places.shape).astype(line.array.dtype)
    written = Padded(write(values, mode="drop"), line.dims)
    return call.sizes.reshaped(written, [true_size(dim) for dim in x.dims])


_NAMES = (
    "scatter.src",
    "scatter.value",
    "scatter.reduce",
    "scatter.value_reduce",
    "scatter_add",
    "scatter_reduce.two",
    "index_add",
    "index_copy",
    "index_reduce",
    "index_fill.int_Scalar",
    "index_fill.int_Tensor",
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((f"aten::{name}" for name in _NAMES), _written),
    "aten::put": _put,
    "aten::masked_scatter": _masked,
    "aten::masked_scatter_backward": _masked_backward,
}
