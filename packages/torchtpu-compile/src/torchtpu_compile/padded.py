# SPDX-License-Identifier: Apache-2.0
"""Arrays that are larger than the tensors they stand for.

A dimension is a product of *factors*, outermost first; each has a true size, known when
the program runs, and a padded size, known when it is compiled. Data that counts lies
where every factor's index is below its true size; what lies elsewhere is unspecified. A
dimension of one factor has its data in front; ``[B, T, D]`` viewed as ``[B*T, D]`` has
two factors and moves no data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchtpu_compile import row_major
from torchtpu_compile.symbols import (
    Unbounded,
    evaluate,
    expression,
    grows,
    is_static,
    largest,
    quotient,
    same,
)

#: Up to this padded size, all values of a symbol are tried for the largest of an expression.
_SEARCHED = 8192


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a dimension.

    Attributes:
        expr: its true size.
        size: its padded size.
    """

    expr: sympy.Expr
    size: int

    @property
    def padded(self) -> bool:
        """Whether the true size may be smaller."""
        return not is_static(self.expr)


Dim: TypeAlias = tuple[Factor, ...]


def normal(factors: Iterable[Factor]) -> Dim:
    """Factors without ones, neighbouring static ones joined."""
    result: list[Factor] = []
    for factor in factors:
        if factor.size == 1 and not factor.padded:
            continue
        if result and not factor.padded and not result[-1].padded:
            last = result.pop()
            factor = Factor(last.expr * factor.expr, last.size * factor.size)
        result.append(factor)
    return tuple(result)


def is_padded(dim: Dim) -> bool:
    """Whether a dimension has padding."""
    return any(factor.padded for factor in dim)


def true_size(dim: Dim) -> sympy.Expr:
    """The true size of a dimension."""
    return sympy.Mul(*(factor.expr for factor in dim))


def padded_size(dim: Dim) -> int:
    """The padded size of a dimension."""
    return math.prod(factor.size for factor in dim)


@dataclass(frozen=True, slots=True)
class Padded:
    """An array and what its dimensions mean.

    Attributes:
        array: as large as the padded sizes.
        dims: one per dimension.
    """

    array: jax.Array
    dims: tuple[Dim, ...]

    @property
    def padded_dims(self) -> list[int]:
        """Indices of the dimensions with padding."""
        return [i for i, dim in enumerate(self.dims) if is_padded(dim)]


class Sizes:
    """The symbols of one program: their padded values and, as arrays, their true ones."""

    def __init__(
        self, padded: Mapping[sympy.Symbol, int], true: Mapping[sympy.Symbol, jax.Array]
    ) -> None:
        self.padded_values = padded
        self.true_values = true

    def padded(self, expr: sympy.Expr) -> int:
        """The padded size of an expression: no true value is larger.

        Raises:
            Unbounded: the expression may be of any size, whatever its symbols are.
        """
        if grows(expr):
            return int(evaluate(expr, self.padded_values))
        bound = self._largest(expr)
        if bound is None:
            bound = self._bound(expr)
        if bound is None:
            raise Unbounded(f"the size {expr} has no bound that its symbols tell")
        return bound

    def _largest(self, expr: sympy.Expr) -> int | None:
        """The largest value of a product of sizes, each of one symbol."""
        factored = sympy.factor(expr)
        product = 1
        for factor in factored.args if factored.is_Mul else (factored,):
            symbols = [s for s in factor.free_symbols if s in self.padded_values]
            if factor.is_number and factor >= 0:
                product *= int(factor)
            elif len(symbols) == 1 and 0 <= (most := self.padded_values[symbols[0]]) <= _SEARCHED:
                product *= largest(factor, most)
            else:
                return None
        return product

    def _bound(self, expr: sympy.Expr) -> int | None:
        """What an expression is at most, by the ranges of its symbols: ``stop - start``."""
        ranges = {symbol: _range(most) for symbol, most in self.padded_values.items()}
        upper = bound_sympy(expr, ranges).upper
        return max(0, int(upper)) if is_static(upper) else None

    def true(self, expr: sympy.Expr) -> jax.Array:
        """The true value of an expression, an int64 scalar of the program."""
        return jnp.asarray(evaluate(expr, self.true_values), np.int64)

    def number(self, expr: sympy.Expr) -> jax.Array:
        """The true value of an expression that need not be whole, a float64 scalar."""
        return jnp.asarray(evaluate(expr, self.true_values), np.float64)

    def dim(self, size: Any) -> Dim:
        """A dimension of one factor."""
        return normal([self._factor(expression(size))])

    def _factor(self, expr: sympy.Expr) -> Factor:
        return Factor(expr, int(expr) if is_static(expr) else self.padded(expr))

    def static(self, array: jax.Array) -> Padded:
        """An array without padding."""
        return Padded(array, tuple(self.dim(n) for n in array.shape))

    def valid(self, x: Padded, dims: Iterable[int]) -> jax.Array | None:
        """Bool, broadcastable to `x`: where data counts along `dims`; None: everywhere."""
        result = None
        for d in dims:
            if not is_padded(x.dims[d]):
                continue
            grid = [factor.size for factor in x.dims[d]]
            ok = jnp.ones((), bool)
            for axis, factor in enumerate(x.dims[d]):
                if factor.padded:
                    ok &= lax.broadcasted_iota(np.int64, grid, axis) < self.true(factor.expr)
            shape = [1] * x.array.ndim
            shape[d] = -1
            ok = ok.reshape(shape)
            result = ok if result is None else result & ok
        return result

    def filled(self, x: Padded, fill: Any, dims: Iterable[int] | None = None) -> Padded:
        """`x` with `fill` in the padding of `dims` (all)."""
        ok = self.valid(x, range(len(x.dims)) if dims is None else dims)
        if ok is None:
            return x
        room = jnp.asarray(fill, x.array.dtype)
        shape = x.array.shape
        ok, room = jnp.broadcast_to(ok, shape), jnp.broadcast_to(room, shape)
        return Padded(lax.select(ok, x.array, room), x.dims)

    def reshaped(self, x: Padded, exprs: Sequence[sympy.Expr]) -> Padded:
        """`x` with dimensions of the given true sizes, in row-major order of its data."""
        while True:
            factors = [f for dim in x.dims for f in dim if f.size != 1 or f.padded]
            dims = _regrouped(factors, exprs)
            if dims is None:
                return self._gathered(x, exprs)
            if not isinstance(dims, _Cut):
                return Padded(x.array.reshape([padded_size(d) for d in dims]), dims)
            x = self._cut(x.array, factors, dims)

    def flat(self, x: Padded) -> Padded:
        """`x` with one dimension, its true data in front, in row-major order."""
        size = sympy.Mul(*(true_size(dim) for dim in x.dims))
        return self.compact(self.reshaped(x, [size]))

    def compact(self, x: Padded) -> Padded:
        """`x` with one factor per dimension."""
        for d, dim in enumerate(x.dims):
            while len(dim) > 1:
                *outer, rows, row = dim
                whole = self._factor(rows.expr * row.expr)
                if not row.padded and whole.size == rows.size * row.size:  # in order as it is
                    dim = (*outer, whole)
                    x = Padded(x.array, (*x.dims[:d], dim, *x.dims[d + 1 :]))
                    continue
                before, behind = x.array.shape[:d], x.array.shape[d + 1 :]
                parts = [f.size for f in dim]
                array = row_major.joined(
                    x.array.reshape(*before, *parts, *behind),
                    d + len(outer),
                    self.true(rows.expr),
                    self.true(row.expr),
                    whole.size,
                )
                dim = (*outer, whole)
                array = array.reshape(*before, padded_size(dim), *behind)
                x = Padded(array, (*x.dims[:d], dim, *x.dims[d + 1 :]))
        return x

    def _cut(self, array: jax.Array, factors: Sequence[Factor], cut: _Cut) -> Padded:
        """An array with one dimension for each factor, one of them in two."""
        i, outer, inner = cut.index, self._factor(cut.outer), self._factor(cut.inner)
        true = self.true(outer.expr), self.true(inner.expr)
        array = array.reshape([f.size for f in factors])
        array = row_major.parted(array, i, *true, (outer.size, inner.size))
        parts = (*factors[:i], outer, inner, *factors[i + 1 :])
        return Padded(array, tuple((f,) for f in parts))

    def _gathered(self, x: Padded, exprs: Sequence[sympy.Expr]) -> Padded:
        """A reshape that must move data: each element looks up its source."""
        dims = tuple(self.dim(e) for e in exprs)
        shape = [padded_size(d) for d in dims]
        flat, stride = jnp.zeros((), np.int64), jnp.ones((), np.int64)
        for d in reversed(range(len(dims))):
            flat = flat + lax.broadcasted_iota(np.int64, shape, d) * stride
            stride = stride * self.true(exprs[d])
        source, step = jnp.zeros((), np.int64), 1
        for factor in reversed([f for dim in x.dims for f in dim]):
            true = self.true(factor.expr)
            source = source + (flat % true) * step
            flat, step = flat // true, step * factor.size
        values = x.array.reshape(-1).at[source].get(mode="clip")
        return Padded(values.reshape(shape), dims)


def _range(padded: int) -> ValueRanges[Any]:
    """The values of a symbol that are padded to one."""
    return ValueRanges(0, padded) if padded >= 0 else ValueRanges(-int_oo, -1)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A factor whose data must move because it becomes two.

    Attributes:
        index: of the factor, among all of a tensor.
        outer: the true size of the outer one.
        inner: the true size of the inner one.
    """

    index: int
    outer: sympy.Expr
    inner: sympy.Expr


def _regrouped(
    factors: Sequence[Factor], exprs: Sequence[sympy.Expr]
) -> tuple[Dim, ...] | _Cut | None:
    """The factors in groups whose true sizes multiply to `exprs`.

    A `_Cut`: once one of them is in two, it may go on. None: each element must be looked up.
    """
    queue = list(factors)
    dims: list[Dim] = []
    for expr in exprs:
        group: list[Factor] = []
        need = expr
        while need != 1:
            if not queue:
                return None
            index, factor = len(factors) - len(queue), queue.pop(0)
            rest = quotient(need, factor.expr)
            if rest is None:
                inner = quotient(factor.expr, need)
                if inner is None:
                    return None
                parts = _split(factor, need, inner)
                if parts is None:
                    is_whole = factor is factors[index]
                    return _Cut(index, need, inner) if is_whole else None
                factor, remaining = parts
                queue.insert(0, remaining)
                rest = sympy.Integer(1)
            group.append(factor)
            need = rest
        dims.append(normal(group))
    return None if queue else tuple(dims)


def _split(factor: Factor, outer: sympy.Expr, inner: sympy.Expr) -> tuple[Factor, Factor] | None:
    """A factor as an outer one of a given size and a static inner one."""
    if not is_static(inner) or inner < 1 or factor.size % int(inner):
        return None
    return Factor(outer, factor.size // int(inner)), Factor(inner, int(inner))


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions have their data in the same places."""
    return len(a) == len(b) and all(
        f.size == g.size and same(f.expr, g.expr) for f, g in zip(a, b, strict=True)
    )
