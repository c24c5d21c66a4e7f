# SPDX-License-Identifier: Apache-2.0
"""Size expressions of a graph: their value for given symbols, and whether they grow with them.

Legend: a *symbol* is a size that Dynamo left open (``s0``); an *expression* is what a
dimension or a number of the graph is in terms of symbols.
"""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from torchtpu_compile.guard_equations import equal_products, equations


class Unbounded(Exception):
    """Why a graph cannot run at a larger size than the true one."""


def expression(size: Any) -> sympy.Expr:
    """The expression of a number as the tracer saw it: plain, symbolic, or an expression."""
    is_symbolic = isinstance(size, (torch.SymInt, torch.SymFloat))
    expr = size.node.expr if is_symbolic else sympy.sympify(size)
    if is_symbolic and expr.is_Mul:
        expr = equal_products(size.node.shape_env).of(expr)
    if not expr.has(sympy.Function):
        return expr
    if is_symbolic:
        known = _fixed(size.node.shape_env)
        expr = expr.replace(lambda e: known(e) is not None, known)
        products = equal_products(size.node.shape_env)
        expr = expr.replace(_is_division, lambda e: _share(products.all_of(e.args[0]), e))
        expr = _without_rests(expr, size.node.shape_env)
    expr = expr.replace(_is_rounded, _unrounded)
    # Not at once: an outer division has to see what an inner one came to.
    return expr.replace(_is_division, lambda e: _whole(*e.args), simultaneous=False)


def _fixed(shape_env: Any) -> Callable[[sympy.Expr], sympy.Integer | None]:
    """A function that tells the value of an expression of sizes whose guards allow one only.

    Blocks of 128 positions: ``(s + 127) // 128`` is 1 where ``s`` is at most 128. The last pair
    of a sum in pairs: ``(s - 1) // 2 == 1`` is a guard itself.
    """
    count, known = _values.get(shape_env, (-1, {}))
    if count != len(shape_env.guards):
        known = dict(_solved(a, b) for a, b in equations(shape_env) if is_static(b))
        _values[shape_env] = len(shape_env.guards), known

    def value(expr: sympy.Expr) -> sympy.Integer | None:
        if expr not in known:
            if not isinstance(expr, sympy.Function):
                return None
            bounds = shape_env.bound_sympy(expr)
            is_one = bounds.lower == bounds.upper and is_static(bounds.lower)
            known[expr] = bounds.lower if is_one else None
        return known[expr]

    return value


_values: weakref.WeakKeyDictionary[Any, tuple[int, dict[sympy.Expr, sympy.Integer | None]]] = (
    weakref.WeakKeyDictionary()
)


def _solved(left: sympy.Expr, right: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """An equation without numbers beside and before its one term: ``2*(s//4) - 1 == 5``."""
    beside, term = left.as_coeff_Add()
    before, term = term.as_coeff_Mul()
    value = (right - beside) / before
    return (term, value) if is_static(value) else (left, right)


def _without_rests(expr: sympy.Expr, shape_env: Any) -> sympy.Expr:
    """An expression without the divisions that guards say leave no rest, if all of them cancel.

    Groups of channels, ``s % 2 == 0``: ``2 * (s//2)`` is ``s``. Chunks of a sequence,
    ``-s % 8 == 0``: ``s // (s//8)`` is 8.
    """
    count, exact = _quotients.get(shape_env, (-1, frozenset()))
    if count != len(shape_env.guards):
        stated = equations(shape_env)
        rests = [rest for rest, value in stated if value == 0]
        rests = [rest for rest in rests if type(rest).__name__ in ("Mod", "PythonMod")]
        divided = {(sign * rest.args[0], rest.args[1]) for rest in rests for sign in (1, -1)}
        divisions = divided | _whole_divisions(stated)
        exact = frozenset(args for args in divisions if is_static(args[1]))
        _quotients[shape_env] = len(shape_env.guards), exact

    def is_exact(e: sympy.Expr) -> bool:
        return _is_division(e) and e.args in exact

    def is_lifted(e: sympy.Expr) -> bool:
        """Whether it is ``max(1, s//3)``: a size that 3 divides is not below 3."""
        return (
            type(e).__name__ == "Max"
            and len(e.args) == 2
            and 1 in e.args
            and any(map(is_exact, e.args))
        )

    if not exact:
        return expr
    expr = expr.replace(is_lifted, lambda e: next(a for a in e.args if a != 1))

    def undone(e: sympy.Expr) -> sympy.Expr:
        """A division without its rounding; of shares of a size, a number may be left."""
        share = sympy.cancel(e.args[0] / e.args[1])
        whole = share if is_exact(e) else quotient(*e.args)
        return whole or (sympy.floor(share) if share.is_Rational else e)

    plain = sympy.expand(expr.replace(_is_division, undone))
    return expr if any(not is_static(n) for n in plain.atoms(sympy.Number)) else plain


def _whole_divisions(
    stated: Sequence[tuple[sympy.Expr, sympy.Expr]],
) -> set[tuple[sympy.Expr, ...]]:
    """What is divided without a rest because both sides of an equation would differ otherwise.

    Rows ``[b, s, d]`` viewed as ``[b, s // 4, 4, d]``: ``b*s*d == 4*b*d*(s//4)``.
    """
    found = set()
    for left, right in stated:
        for side, other in ((left, right), (right, left)):
            divisions = [e for e in sympy.Mul.make_args(side) if _is_division(e)]
            if len(divisions) == 1 and is_static(divisions[0].args[1]):
                dividend, divisor = divisions[0].args
                others = (e for e in sympy.Mul.make_args(side) if e != divisions[0])
                # Only the factor: within another one, ``s // (s // 4)``, a share is no size.
                if same(sympy.Mul(dividend / divisor, *others), other):
                    found.add((dividend, divisor))
    return found


_quotients: weakref.WeakKeyDictionary[Any, tuple[int, frozenset[tuple[sympy.Expr, ...]]]] = (
    weakref.WeakKeyDictionary()
)


def _share(dividends: Sequence[sympy.Expr], division: sympy.Expr) -> sympy.Expr:
    """A division of the one among equal `dividends` of which it is a size that grows."""
    shares = (_whole(dividend, division.args[1]) for dividend in dividends)
    return next((share for share in shares if grows(share)), division)


def _is_division(expr: sympy.Expr) -> bool:
    return type(expr).__name__ in ("FloorDiv", "CleanDiv")


def _whole(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    """A division in lowest terms, without its rounding where it leaves no rest: ``(s*s)//s``."""
    rounded_up = quotient(dividend - divisor + 1, divisor)  # (k*d + d - 1) // d
    if rounded_up is not None:
        return rounded_up
    numerator, denominator = sympy.cancel(dividend / divisor).as_numer_denom()
    return numerator if denominator == 1 else FloorDiv(numerator, denominator)


#: Quotients that need not be whole.
_TRUE_DIVISIONS = frozenset({"IntTrueDiv", "FloatTrueDiv"})


def _is_rounded(expr: sympy.Expr) -> bool:
    name = type(expr).__name__
    return name.endswith("ToInt") and type(expr.args[0]).__name__ in _TRUE_DIVISIONS


def _unrounded(expr: sympy.Expr) -> sympy.Expr:
    """A rounded quotient without its rounding where there is nothing to round: ``int(4*s / 4)``."""
    dividend, divisor = expr.args[0].args
    if type(dividend).__name__ == "ToFloat":
        dividend = dividend.args[0]
    if not divisor.is_number or not float(divisor).is_integer():
        return expr
    whole = quotient(dividend, sympy.Integer(int(divisor)))
    return expr if whole is None or whole.has(sympy.Float) else whole


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


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *args: functools.reduce(function, args)


def _choice(plain: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    """A function on plain numbers or on arrays of a program."""
    return lambda *args: (traced if any(isinstance(a, jax.Array) for a in args) else plain)(*args)


def _as_float(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, jax.Array) else float(value)


def _true_divide(a: Any, b: Any) -> Any:
    return _as_float(a) / _as_float(b)


def _power(base: Any, exponent: Any) -> Any:
    return _as_float(base) ** _as_float(exponent)


#: How a kind of expression is computed, by class name (torch has classes of its own).
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": _reduce(operator.add),
    "Mul": _reduce(operator.mul),
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": _reduce(_choice(max, jnp.maximum)),
    "Min": _reduce(_choice(min, jnp.minimum)),
    "ToFloat": _as_float,
    "IntTrueDiv": _true_divide,
    "FloatTrueDiv": _true_divide,
    "FloatPow": _power,
    "OpaqueUnaryFn_sqrt": _choice(math.sqrt, lambda a: jnp.sqrt(_as_float(a))),
    "CeilToInt": _choice(math.ceil, lambda a: jnp.ceil(a).astype(np.int64)),
    "FloorToInt": _choice(math.floor, lambda a: jnp.floor(a).astype(np.int64)),
    "TruncToInt": _choice(math.trunc, lambda a: jnp.trunc(a).astype(np.int64)),
    "RoundToInt": _choice(round, lambda a: jnp.round(a).astype(np.int64)),
}
#: Kinds of expressions that grow with all their arguments.
_GROWING = frozenset(
    {"Max", "Min", "ToFloat", "CeilToInt", "FloorToInt", "RoundToInt", "TruncToInt"}
)
#: To whole numbers, by less than one and alike for numbers one apart.
_ROUNDINGS = frozenset({"CeilToInt", "FloorToInt", "TruncToInt"})
#: Quotients: they grow with the first argument if the second is a positive number.
_QUOTIENTS = frozenset({"FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv"})


def evaluate(expr: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """An expression's value; `values` are ints or arrays.

    Raises:
        Unbounded: the expression has a form that sizes rarely have.
    """
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if expr.is_number and isinstance(expr, (sympy.Float, sympy.Rational)):
        return float(expr)
    if isinstance(expr, sympy.Symbol):
        if expr not in values:
            raise Unbounded(f"nothing in the graph's inputs tells the size {expr}")
        return values[expr]
    function = FUNCTIONS.get(type(expr).__name__)
    if function is None:
        raise Unbounded(f"{expr} is not a form of number that a program can compute")
    if isinstance(expr, sympy.Pow) and not is_static(expr.exp):
        raise Unbounded(f"the size {expr} has a variable exponent")
    return function(*(evaluate(argument, values) for argument in expr.args))


@functools.lru_cache(maxsize=1024)
def largest(expr: sympy.Expr, most: int) -> int:
    """The largest value of an expression of one symbol: a size, or a number that may be 0."""
    (symbol,) = expr.free_symbols
    least = 1 if symbol.is_positive else 0
    return max((_value(expr, symbol, n) for n in range(least, most + 1)), default=0)


def _value(expr: sympy.Expr, symbol: sympy.Symbol, n: int) -> int:
    """The value at `n`, not below 0; 0 where it has none, such as ``8 // (s // 4)`` at 3."""
    try:
        return max(0, int(evaluate(expr, {symbol: n})))
    except ZeroDivisionError:
        return 0


def grows(expr: sympy.Expr) -> bool:
    """Whether an expression can only grow when a symbol grows."""
    if expr.is_number or isinstance(expr, sympy.Symbol):
        return True
    name, arguments = type(expr).__name__, expr.args
    if name == "Add":
        return _sum_grows(expr)
    if name in _GROWING:
        return all(map(grows, arguments))
    if name == "Mul":
        return all(grows(a) and not (a.is_number and a < 0) for a in arguments)
    if name in _QUOTIENTS:
        return grows(arguments[0]) and _is_positive_number(arguments[1])
    powers = ("Pow", "PowByNatural")
    return name in powers and grows(arguments[0]) and _is_positive_number(arguments[1])


def _sum_grows(expr: sympy.Expr) -> bool:
    """Whether a sum grows: what it loses may be a part of what it has, as in ``s - s//4``."""
    for term in expr.args:
        if grows(term):
            continue
        whole = _whole_of_part(-term)
        if whole is None or not grows(whole):
            return False
        expr = expr - term - whole
    return all(map(grows, sympy.Add.make_args(expr)))


def _whole_of_part(term: sympy.Expr) -> sympy.Expr | None:
    """What a term is a rounded part of, which grows at least as fast; None: it is none."""
    factors = sympy.Mul.make_args(term)
    for i, factor in enumerate(factors):
        whole = _dividend(factor)
        others = factors[:i] + factors[i + 1 :]
        if whole is not None and all(grows(f) and not f.is_negative for f in others):
            return sympy.Mul(whole, *others)
    return None


def _dividend(expr: sympy.Expr) -> sympy.Expr | None:
    """The whole number of which an expression is a share of at most 1, rounded."""
    name = type(expr).__name__
    if name in _ROUNDINGS:
        inner = expr.args[0]
        if inner.is_Mul and len(inner.args) == 2 and inner.args[0].is_number:
            share, whole = inner.args
            share = 1 / share if share > 0 else sympy.Integer(0)
        elif type(inner).__name__ in _QUOTIENTS:
            whole, share = inner.args
        else:
            return None
        whole = whole.args[0] if type(whole).__name__ == "ToFloat" else whole
    elif name in ("FloorDiv", "CleanDiv", "CeilDiv"):
        whole, share = expr.args
    else:
        return None
    return whole if share.is_number and share >= 1 else None


def _is_positive_number(expr: sympy.Expr) -> bool:
    return bool(expr.is_number and expr > 0)
