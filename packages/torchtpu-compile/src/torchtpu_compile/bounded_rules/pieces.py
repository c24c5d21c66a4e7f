# SPDX-License-Identifier: Apache-2.0
"""Rules for parts of a dimension: every n-th element, pieces, windows, diagonals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, moved
from torchtpu_compile.padded import Padded, is_padded, padded_size, true_size
from torchtpu_compile.symbols import expression, is_static, same


def position(call: Call, x: Padded, dim: int, index: Any) -> jax.Array:
    """A run-time index along a dimension, negative ones counted from the true end."""
    value = call.sizes.true(expression(index))
    return jnp.where(value < 0, value + call.sizes.true(true_size(x.dims[dim])), value)


def first_of(call: Call, x: Padded, dim: int, start: Any) -> jax.Array:
    """Where a slice of a dimension begins."""
    size = call.sizes.true(true_size(x.dims[dim]))
    return jnp.clip(position(call, x, dim, 0 if start is None else start), 0, size)


def _slice(call: Call) -> Padded:
    x = call.args[0]
    dim = dim_of(x, call.arg("dim"))
    start, end, step = call.arg("start"), call.arg("end"), call.arg("step")
    expr = call.exprs()[dim]
    if same(expr, true_size(x.dims[dim])) and step == 1:
        return x
    symbolic = [v for v in (start, end) if isinstance(v, sympy.Expr) and not is_static(v)]
    if not is_padded(x.dims[dim]) and not symbolic:
        return Padded(call.run(), (*x.dims[:dim], call.sizes.dim(expr), *x.dims[dim + 1 :]))
    x = call.sizes.compact(x)
    cut = call.sizes.dim(expr)
    begin, room = first_of(call, x, dim, start), padded_size(cut)
    if step == 1:
        array = moved(call, x, dim, begin, room)
    else:
        places = begin + lax.iota(np.int64, room) * call.sizes.true(expression(step))
        array = jnp.take(x.array, places, axis=dim, mode="clip")
    return Padded(array, (*x.dims[:dim], cut, *x.dims[dim + 1 :]))


def _pieces(call: Call) -> Any:
    """Ops that cut a dimension in pieces; true sizes say where each begins."""
    x = call.args[0]
    dim = dim_of(x, call.arg("dim"))
    unbind = "unbind" in str(call.node.target)
    count = len(call.node.meta["val"])
    sizes = [sympy.Integer(1) if unbind else call.exprs(i)[dim] for i in range(count)]
    if not is_padded(x.dims[dim]) and all(map(is_static, sizes)):
        return [
            Padded(piece, _with(x, dim, () if unbind else call.sizes.dim(piece.shape[dim]), unbind))
            for piece in call.run()
        ]
    x = call.sizes.compact(x)
    begin, result = jnp.zeros((), np.int64), []
    for expr in sizes:
        size = call.sizes.dim(expr)
        array = moved(call, x, dim, begin, padded_size(size))
        begin = begin + call.sizes.true(expr)
        result.append(
            Padded(jnp.squeeze(array, dim) if unbind else array, _with(x, dim, size, unbind))
        )
    return result


def _with(x: Padded, dim: int, size: Any, gone: bool) -> tuple[Any, ...]:
    return (*x.dims[:dim], *(() if gone else (size,)), *x.dims[dim + 1 :])


def _unfold(call: Call) -> Padded:
    # aten::unfold(self, dimension, size, step)
    x = call.sizes.compact(call.args[0])
    if not x.dims:
        return call.result(call.run())
    dim = dim_of(x, call.args[1])
    exprs = call.exprs()
    count, width = call.sizes.dim(exprs[dim]), call.sizes.dim(exprs[-1])
    starts = lax.iota(np.int64, padded_size(count)) * call.sizes.true(expression(call.args[3]))
    places = starts[:, None] + lax.iota(np.int64, padded_size(width))
    array = jnp.moveaxis(jnp.take(x.array, places, axis=dim, mode="clip"), dim + 1, -1)
    return Padded(array, (*x.dims[:dim], count, *x.dims[dim + 1 :], width))


def _diagonal(call: Call) -> Padded:
    x = call.sizes.compact(call.args[0])
    first, second = dim_of(x, call.arg("dim1")), dim_of(x, call.arg("dim2"))
    size = call.sizes.dim(call.exprs()[-1])
    along = lax.iota(np.int64, padded_size(size))
    offset = call.sizes.true(expression(call.arg("offset")))
    array = jnp.moveaxis(x.array, (first, second), (-2, -1))
    below, right = jnp.maximum(-offset, 0), jnp.maximum(offset, 0)
    values = array.at[..., along + below, along + right].get(mode="clip")
    rest = [dim for d, dim in enumerate(x.dims) if d not in (first, second)]
    return Padded(values, (*rest, size))


def _diagonal_scatter(call: Call) -> Padded:
    x, source = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[1])
    first, second = dim_of(x, call.arg("dim1")), dim_of(x, call.arg("dim2"))
    offset = call.sizes.true(expression(call.arg("offset")))
    array = jnp.moveaxis(x.array, (first, second), (-2, -1))
    row = lax.broadcasted_iota(np.int64, array.shape[-2:], 0)
    column = lax.broadcasted_iota(np.int64, array.shape[-2:], 1)
    along = jnp.minimum(row, column)
    values = jnp.take(source.array, along, axis=-1, mode="clip").astype(array.dtype)
    written = jnp.where(column - row == offset, values, array)
    return Padded(jnp.moveaxis(written, (-2, -1), (first, second)), x.dims)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten::slice.Tensor", "aten::slice_copy.Tensor"), _slice),
    **dict.fromkeys(
        (
            "aten::split.Tensor",
            "aten::split_with_sizes",
            "aten::unsafe_split.Tensor",
            "aten::unsafe_split_with_sizes",
            "aten::unbind.int",
        ),
        _pieces,
    ),
    "aten::unfold": _unfold,
    "aten::diagonal": _diagonal,
    "aten::diagonal_scatter": _diagonal_scatter,
}
