# SPDX-License-Identifier: Apache-2.0
"""What the guards of a graph say about its sizes: which products are equal, how far a size may go.

Each is an equation that no symbol can be solved for, or Dynamo would have done so.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy


def equations(shape_env: Any) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """The two sides of each guard that is an equation."""
    guards = (guard.expr for guard in shape_env.guards)
    return [guard.args for guard in guards if isinstance(guard, sympy.Eq)]


@dataclass(frozen=True, slots=True)
class EqualProducts:
    """Products of sizes and what they equal: one of older symbols, or a number.

    Attributes:
        older: by the newer product without its number, that number and what both together equal.
        found: what equals a product, of those that were asked for: sympy takes long.
    """

    older: Mapping[sympy.Expr, tuple[sympy.Integer, sympy.Expr]]
    found: dict[sympy.Expr, list[sympy.Expr]] = field(default_factory=dict, compare=False)

    def of(self, expr: sympy.Expr) -> sympy.Expr:
        """A product in older symbols, if it equals one."""
        number, product = expr.as_coeff_Mul()
        given, older = self.older.get(product, (None, expr))
        if given is None or number % given != 0:
            return expr
        return older * (number // given)

    def all_of(self, expr: sympy.Expr) -> list[sympy.Expr]:
        """What equals a product, itself first, if anything else does."""
        if expr not in self.found:
            self.found[expr] = self._all_of(expr)
        return self.found[expr]

    def _all_of(self, expr: sympy.Expr) -> list[sympy.Expr]:
        oldest = self.of(expr)
        found = [expr] if oldest == expr else [expr, oldest]
        for product, (number, older) in self.older.items():
            more, rest = sympy.cancel(oldest / older).as_numer_denom()
            if product != expr and more.is_Integer and rest.is_Integer:
                scaled = number * product * more / rest
                found += [scaled] if scaled.as_coeff_Mul()[0].is_Integer else []
        return found if len(found) > 1 else []


_products: weakref.WeakKeyDictionary[Any, tuple[int, EqualProducts]] = weakref.WeakKeyDictionary()


def equal_products(shape_env: Any) -> EqualProducts:
    """Products of sizes that guards say are equal.

    Tokens ``[B, T]`` and targets ``[C, U]`` have symbols of their own; a loss over both, flat,
    guards ``B*T == C*U``. Two images of 8 channels whose pixels are all compared guard
    ``8*H*W == 8*K*L``. Heads and their width, joined for a layer of 32 inputs, guard
    ``H*D == 32``.
    """
    count, known = _products.get(shape_env, (-1, EqualProducts({})))
    if count == len(shape_env.guards):
        return known
    age = {symbol: i for i, symbol in enumerate(shape_env.var_to_range)}
    found = {}
    for sides in equations(shape_env):
        if all(side.is_Mul or side.is_Integer for side in sides):
            older, newer = sorted(sides, key=lambda e: _age(e, age))
            number, product = newer.as_coeff_Mul()
            before, rest = older.as_coeff_Mul()
            common = sympy.gcd(number, before)
            # A symbol by itself is one that Dynamo has solved for: it stands for it elsewhere.
            if number.is_Integer and number > 0 and product != 1 and not product.is_Symbol:
                found[product] = number // common, rest * (before // common)
    known = EqualProducts(found)
    _products[shape_env] = len(shape_env.guards), known
    return known


def _age(expr: sympy.Expr, age: Mapping[sympy.Symbol, int]) -> int:
    """When the last symbol of an expression was made; a number is older than all."""
    return max((age.get(symbol, len(age)) for symbol in expr.free_symbols), default=-1)


#: Larger sizes that are tried, one by one.
_TRIED = 64


def largest_that_holds(symbol: sympy.Symbol, shape_env: Any) -> int | None:
    """The largest size at which all equations of guards over it alone hold; None: there is none.

    Halves of ``s`` columns, one of which goes into a layer of 2 inputs, guard ``(s + 1)//2 == 2``:
    at a padded ``s`` they would not fit. What comes again, as ``s % 8 == 0``, is no bound.
    """
    guards = (guard.expr for guard in shape_env.guards if isinstance(guard.expr, sympy.Eq))
    alone = [equation for equation in guards if equation.free_symbols == {symbol}]
    traced = shape_env.backed_var_to_val.get(symbol)
    if not alone or traced is None:
        return None
    traced = int(traced)
    far = (k * traced + more for k in (2, 4) for more in (0, 1))
    values = [*range(traced, traced + _TRIED + 1), *far]
    held = [n for n in values if all(e.subs(symbol, n) == sympy.true for e in alone)]
    return max(held) if held and max(held) <= traced + _TRIED // 2 else None
