# SPDX-License-Identifier: Apache-2.0
"""Size expressions of a graph: their value for given symbols, and whether they grow with them.

Legend: a *symbol* is a size that Dynamo left open (``s0``); an *expression* is what a
dimension or a number of the graph is in terms of symbols.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch


class Unbounded(Exception):
    """Why a graph cannot run at a larger size than the true one."""


def expression(size: Any) -> sympy.Expr:
    """The expression of a size as the tracer saw it: an int, a SymInt or an expression."""
    expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size)
    return expr.replace(_is_division, _whole) if expr.has(sympy.Function) else expr


def _is_division(expr: sympy.Expr) -> bool:
    return type(expr).__name__ in ("FloorDiv", "CleanDiv")


def _whole(expr: sympy.Expr) -> sympy.Expr:
    """A division without its rounding where it leaves no rest: ``(s*s)//s``."""
    exact = quotient(*expr.args)
    return expr if exact is None else exact


def is_static(expr: sympy.Expr) -> bool:
    """Whether an expression is a plain number."""
    return isinstance(expr, sympy.Integer)


def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two expressions are equal for all symbols, as far as sympy can tell."""
    return a == b or sympy.expand(a - b) == 0


def quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """``a / b`` if it is a whole expression, else None."""
    if b == 1:
        return a
    result = sympy.cancel(a / b)
    numerator, denominator = result.as_numer_denom()
    return numerator if denominator == 1 else None


def _floor_divide(a: Any, b: Any) -> Any:
    return a // b


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *args: functools.reduce(function, args)


#: How a kind of expression is computed, by class name (torch has classes of its own).
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": _reduce(operator.add),
    "Mul": _reduce(operator.mul),
    "Pow": lambda base, exponent: base**exponent,
    "FloorDiv": _floor_divide,
    "CleanDiv": _floor_divide,
    "CeilDiv": lambda a, b: -(-a // b),
}


def evaluate(expr: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """An expression's value; `values` are ints or arrays.

    Raises:
        Unbounded: the expression has a form that sizes rarely have.
    """
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        if expr not in values:
            raise Unbounded(f"nothing in the graph's inputs tells the size {expr}")
        return values[expr]
    function = _FUNCTIONS.get(type(expr).__name__)
    if function is None:
        raise Unbounded(f"the size {expr} is not a sum, product or floor division")
    if isinstance(expr, sympy.Pow) and not is_static(expr.exp):
        raise Unbounded(f"the size {expr} has a variable exponent")
    return function(*(evaluate(argument, values) for argument in expr.args))


def grows(expr: sympy.Expr) -> bool:
    """Whether an expression can only grow when a symbol grows."""
    if isinstance(expr, (sympy.Integer, sympy.Symbol)):
        return True
    name = type(expr).__name__
    if name == "Add":
        return all(grows(argument) for argument in expr.args)
    if name == "Mul":
        return all(grows(a) and not (is_static(a) and a < 0) for a in expr.args)
    if name in ("FloorDiv", "CleanDiv", "CeilDiv"):
        return grows(expr.args[0]) and is_static(expr.args[1]) and expr.args[1] > 0
    return name == "Pow" and grows(expr.args[0]) and is_static(expr.args[1]) and expr.args[1] > 0
