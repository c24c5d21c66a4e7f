# SPDX-License-Identifier: Apache-2.0
"""Padded operands of one op brought to the same places, and ops that compute place by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from jax import lax

from torchtpu_compile.bounded_call import Call
from torchtpu_compile.errors import describe
from torchtpu_compile.padded import Dim, Factor, Padded, Sizes, is_padded, same_dim, true_size
from torchtpu_compile.symbols import Unbounded, same


def elementwise(call: Call) -> Any:
    """An op that computes each element from those at the same place."""
    operands = [(i, a) for i, a in enumerate(call.args) if isinstance(a, Padded)]
    lists = [v for a in call.args if isinstance(a, (list, tuple)) for v in a]
    if any(isinstance(v, Padded) and v.padded_dims for v in lists):
        raise Unbounded(f"{describe(call.node)} takes a list of padded tensors")
    aligned = align(call.sizes, [a for _, a in operands])
    for (i, _), value in zip(operands, aligned, strict=True):
        call.args[i] = value
    values = call.run()
    if isinstance(values, (list, tuple)):
        return [Padded(v, joint_dims(aligned, call.exprs(i))) for i, v in enumerate(values)]
    return Padded(values, joint_dims(aligned, call.exprs()))


def align(sizes: Sizes, operands: Sequence[Padded]) -> list[Padded]:
    """Operands whose common dimensions have as much room, and their data in the same places.

    Their true sizes are equal, which PyTorch has checked; the expressions may not show it,
    and then may differ in their room: what is padding in any of the operands is cut off all.
    """
    rank = max((len(x.dims) for x in operands), default=0)
    for d in range(1, rank + 1):
        dims = [x.dims[-d] for x in operands if len(x.dims) >= d and x.dims[-d] != ()]
        padded = [dim for dim in dims if is_padded(dim)]
        if padded and not all(same_dim(dim, dims[0]) for dim in dims):
            return _cut_to_smallest([sizes.compact(x) for x in operands])
    return list(operands)


def _cut_to_smallest(operands: list[Padded]) -> list[Padded]:
    """Operands of one factor per dimension without what is padding in any of them."""
    for d in range(1, max((len(x.dims) for x in operands), default=0) + 1):
        wide = [x for x in operands if len(x.dims) >= d and x.dims[-d] != ()]
        least = min((x.array.shape[-d] for x in wide), default=1)
        operands = [
            cut(x, len(x.dims) - d, least) if len(x.dims) >= d and x.dims[-d] != () else x
            for x in operands
        ]
    return operands


def cut(x: Padded, dim: int, size: int) -> Padded:
    """`x` with the first `size` places of a dimension of one factor."""
    if x.array.shape[dim] == size:
        return x
    (factor,) = x.dims[dim]
    dims = (*x.dims[:dim], (Factor(factor.expr, size),), *x.dims[dim + 1 :])
    return Padded(lax.slice_in_dim(x.array, 0, size, axis=dim), dims)


def joint_dims(
    operands: Sequence[Padded], exprs: Sequence[sympy.Expr] | None = None
) -> tuple[Any, ...]:
    """The dimensions of operands broadcast against each other, as `exprs` state their sizes."""
    rank = max((len(x.dims) for x in operands), default=0)
    result = []
    for d in range(rank, 0, -1):
        dims = [x.dims[-d] for x in operands if len(x.dims) >= d]
        wide = [dim for dim in dims if dim != ()]
        stated = exprs[-d] if exprs is not None and len(exprs) == rank else None
        result.append(next((dim for dim in wide if _states(dim, stated)), wide[0] if wide else ()))
    return tuple(result)


def _states(dim: Dim, expr: sympy.Expr | None) -> bool:
    """Whether a dimension's true size is visibly `expr`."""
    return expr is None or same(true_size(dim), expr)
