# SPDX-License-Identifier: Apache-2.0
"""`as_strided` and writes by strides at padded sizes: places in memory that a tensor fills.

A view of another tensor may be asked for memory of that one, which it does not hold: such a graph
runs at its true sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax
from torch.fx import Node
from torchtpu_core.lowering import checks

from torchtpu_compile import strided
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import fitted, refuse
from torchtpu_compile.padded import Dim, Padded, Sizes, padded_size, true_size
from torchtpu_compile.result_layout import memory_order
from torchtpu_compile.symbols import expression, is_static, quotient, same


class _Memory(NamedTuple):
    """The memory of an operand, and the places of it that a view by strides has.

    Attributes:
        order: dimensions of the operand, outermost in memory first.
        dims: what they are, in that order.
        table: its elements in memory; ``[rows, row]`` where the view has whole rows.
        places: of the view's elements (or rows) in `table`.
        valid: where `places` counts; None: everywhere.
        view: dimensions of the view.
    """

    order: Sequence[int]
    dims: tuple[Dim, ...]
    table: Padded
    places: jax.Array
    valid: jax.Array | None
    view: tuple[Dim, ...]


def _as_strided(call: Call) -> Padded:
    memory = _memory(call, call.exprs())
    array = jnp.take(memory.table.array, memory.places, 0, mode="clip")
    return Padded(array, (*memory.view[: memory.places.ndim], *memory.table.dims[1:]))


def _as_strided_scatter(call: Call) -> Padded:
    # aten::as_strided_scatter(self, src, size, stride, storage_offset); padding is written nowhere
    memory = _memory(call, [sympy.sympify(n) for n in call.arg("size")])
    table, places = memory.table, memory.places
    if memory.valid is not None:
        places = jnp.where(memory.valid, places, table.array.shape[0])
    source = call.sizes.compact(call.args[1]).array.astype(table.array.dtype)
    source = fitted(source, [*places.shape, *table.array.shape[1:]])
    written = Padded(table.array.at[places].set(source, mode="drop"), table.dims)
    whole = call.sizes.reshaped(written, [true_size(dim) for dim in memory.dims])
    back = [memory.order.index(d) for d in range(len(memory.order))]
    return Padded(jnp.transpose(whole.array, back), tuple(whole.dims[d] for d in back))


def _memory(call: Call, size: Sequence[sympy.Expr]) -> _Memory:
    """The memory that a call addresses.

    Raises:
        Unbounded: it is that of a tensor which the operand is a part of.
    """
    source = call.node.args[0]
    assert isinstance(source, Node)
    value = source.meta["val"]
    shape, steps = ([expression(n) for n in given] for given in (value.shape, value.stride()))
    order = list(range(value.ndim)) if value.is_contiguous() else memory_order(shape, steps)
    begin = call.arg("storage_offset")
    own = expression(value.storage_offset())
    begin = sympy.Integer(0) if begin is None else sympy.sympify(begin) - own
    if order is None or not is_static(begin) or begin < 0 or not strided.is_whole(source):
        raise refuse(call, "addresses the memory of a view")
    x = call.args[0]
    x = Padded(jnp.transpose(x.array, order), tuple(x.dims[d] for d in order))
    dims = tuple(call.sizes.dim(e) for e in size)
    strides = [sympy.sympify(n) for n in call.arg("stride")]
    row = _row(x, size, strides, begin)
    steps = [
        s if row is None else quotient(s, row) for s in strides[: len(dims) - (row is not None)]
    ]
    count = sympy.Mul(*(true_size(dim) for dim in x.dims))
    rows = [count] if row is None else [quotient(count, row), row]
    table = call.sizes.compact(call.sizes.reshaped(x, rows))
    place = begin if row is None else quotient(begin, row)
    places = _places(call.sizes, Padded(x.array, dims[: len(steps)]), steps, place)
    inside = (places.array >= 0) & (places.array < call.sizes.true(rows[0]))
    valid = call.sizes.valid(places, range(len(places.dims)))
    checks.require(
        inside if valid is None else inside | ~valid,
        ValueError,
        "it addresses places of memory that no tensor of the graph holds: use slices or unfold() "
        "in place of as_strided()",
    )
    return _Memory(order, x.dims, table, places.array, valid, dims)


def _row(
    x: Padded, size: Sequence[sympy.Expr], strides: Sequence[sympy.Expr], begin: sympy.Expr
) -> sympy.Expr | None:
    """The innermost dimension of `x`, if the result has it as a whole, too; else None."""
    if not x.dims or not size or strides[-1] != 1:
        return None
    row = true_size(x.dims[-1])
    if row == 1 or not same(row, size[-1]):
        return None
    is_whole = all(quotient(s, row) is not None for s in (*strides[:-1], begin))
    return row if is_whole else None


def _places(sizes: Sizes, like: Padded, strides: Sequence[sympy.Expr], begin: sympy.Expr) -> Padded:
    shape = [padded_size(dim) for dim in like.dims]
    place: jax.Array = jnp.full(shape, sizes.true(begin))
    for d, stride in enumerate(strides):
        place = place + lax.broadcasted_iota(np.int64, shape, d) * sizes.true(stride)
    return Padded(place, like.dims)


RULES: Mapping[str, Rule] = {
    "aten::as_strided": _as_strided,
    "aten::as_strided_scatter": _as_strided_scatter,
}
