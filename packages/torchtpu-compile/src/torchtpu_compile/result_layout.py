# SPDX-License-Identifier: Apache-2.0
"""How tensors of open size lie in memory, and how results get there from padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import sympy
import torch

from torchtpu_compile.padded import Padded, Sizes, is_padded
from torchtpu_compile.symbols import evaluate, expression, same


def dense_strides(
    exprs: Sequence[sympy.Expr], order: Sequence[int] | None = None
) -> list[sympy.Expr]:
    """Strides without gaps, dimensions from outermost to innermost in `order`."""
    strides: list[sympy.Expr] = [sympy.Integer(1)] * len(exprs)
    step: sympy.Expr = sympy.Integer(1)
    for d in reversed(range(len(exprs)) if order is None else order):
        strides[d] = step
        step = step * exprs[d]
    return strides


def memory_order(exprs: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> list[int] | None:
    """Dimensions from outermost to innermost, None if there are gaps or it cannot be told."""
    strides = [_without_floors(stride) for stride in strides]
    left = [d for d, size in enumerate(exprs) if size != 1]
    inner: list[int] = []
    step: sympy.Expr = sympy.Integer(1)
    while left:
        found = next((d for d in reversed(left) if same(strides[d], step)), None)
        if found is None:
            return None
        left.remove(found)
        inner.append(found)
        step = step * exprs[found]
    return [d for d, size in enumerate(exprs) if size == 1] + inner[::-1]


def _without_floors(stride: sympy.Expr) -> sympy.Expr:
    """A stride with ``size`` for ``max(1, size)``: where a size is 0, nothing lies anywhere."""

    def is_floor(e: sympy.Expr) -> bool:
        return type(e).__name__ == "Max" and len(e.args) == 2 and 1 in e.args

    return stride.replace(is_floor, lambda e: next(a for a in e.args if a != 1))


def strides_like(value: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Dense strides for `shape`, dimensions ordered in memory as those of `value`."""
    strides = value.stride()
    is_fixed = all(isinstance(s, int) for s in (*value.shape, *strides))
    if is_fixed:
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
    else:
        exprs, steps = ([expression(n) for n in given] for given in (value.shape, strides))
        order = memory_order(exprs, steps) or list(range(len(shape)))
    dense, step = [0] * len(shape), 1
    for d in reversed(order):
        dense[d] = step
        step *= max(int(shape[d]), 1)
    known = zip(dense, strides, shape, strict=True)
    same = is_fixed and all(a == b or size <= 1 for a, b, size in known)
    return list(strides) if same else dense


def sharing(
    root: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """A tensor on the storage of `root` that autograd does not take for a view of it."""
    part = torch.empty(0, dtype=root.dtype, device=root.device)
    return part.set_(root.untyped_storage(), offset, size, stride)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a result of open size lies in its storage.

    What the user sees is dense, as it would be without padding. What only the backward
    graph sees stays as the program made it, padding in place.

    Attributes:
        exprs: its true sizes.
        strides: its strides; None: those of the padded tensor.
        order: its dimensions from outermost to innermost in memory.
    """

    exprs: Sequence[sympy.Expr]
    strides: Sequence[sympy.Expr] | None
    order: Sequence[int]

    @classmethod
    def of(cls, exprs: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> Layout:
        """The dense layout of a tensor with these strides; row-major if they have gaps."""
        order = memory_order(exprs, strides)
        if order is None:
            return cls(exprs, dense_strides(exprs), range(len(exprs)))
        return cls(exprs, strides, order)

    @classmethod
    def with_padding(cls, exprs: Sequence[sympy.Expr]) -> Layout:
        """The layout of what only the backward graph sees."""
        return cls(exprs, None, range(len(exprs)))

    def laid_out(self, sizes: Sizes, value: Padded) -> jax.Array:
        """The program's result for a value."""
        order = list(self.order)
        if order != sorted(order):
            value = Padded(jnp.transpose(value.array, order), tuple(value.dims[d] for d in order))
        if self.strides is None or not any(map(is_padded, value.dims[1:])):
            return sizes.compact(value).array
        return sizes.flat(value).array

    def cut(self, tensor: torch.Tensor, known: Mapping[sympy.Symbol, int]) -> torch.Tensor:
        """The tensor of true sizes on the storage of a padded result.

        Not a view: AOTAutograd takes a view for an alias of its base and asks for the
        base's sizes.
        """
        true = [evaluate(e, known) for e in self.exprs]
        strides = (
            tensor.stride() if self.strides is None else [evaluate(e, known) for e in self.strides]
        )
        with torch.no_grad():
            return sharing(tensor, true, strides)
