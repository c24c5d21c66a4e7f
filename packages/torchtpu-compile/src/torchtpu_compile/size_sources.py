# SPDX-License-Identifier: Apache-2.0
"""Where the values of a step's symbols are among its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch

from torchtpu_compile.symbols import Unbounded, evaluate, expression, is_static, quotient


@dataclass(frozen=True, slots=True)
class Source:
    """Where a symbol's value is.

    Attributes:
        symbol: the symbol.
        index: of a tensor among the tensors, or of a number among the numbers.
        dim: of the tensor; None: the number itself.
        times: what it is multiplied by there; an expression of symbols found before this one.
        plus: what is added to that, as in ``16 - s``.
    """

    symbol: sympy.Symbol
    index: int
    dim: int | None
    times: int | sympy.Expr
    plus: int = 0


#: Reads a symbol's value from the arguments of a call.
Reader = Callable[[Sequence[Any]], int]
#: A number of the operands: its expression, index and dim as in `Source`.
_Place = tuple[sympy.Expr, int, int | None]


def sources_of(
    symbols: Iterable[sympy.Symbol], interface: Any, shapes: Sequence[Sequence[sympy.Expr]]
) -> list[Source]:
    """The source of each symbol, in an order in which they can be computed.

    Raises:
        Unbounded: the operands do not tell a symbol.
    """
    places = _places(interface, shapes)
    found: dict[sympy.Symbol, Source] = {}
    left = sorted(symbols, key=str)
    while left:
        new = [source for s in left if (source := _source(s, places, found)) is not None]
        if not new:
            raise Unbounded(f"nothing in the graph's inputs tells the size {left[0]}")
        found.update((source.symbol, source) for source in new)
        left = [s for s in left if s not in found]
    return list(found.values())


def true_sizes(
    sources: Sequence[Source], tensors: Sequence[torch.Tensor], numbers: Sequence[Any]
) -> dict[sympy.Symbol, int]:
    """The value of each symbol.

    Raises:
        Unbounded: one of them is a quotient by a size of 0.
    """
    known: dict[sympy.Symbol, int] = {}
    for s in sources:
        value = numbers[s.index] if s.dim is None else tensors[s.index].shape[s.dim]
        times = s.times if isinstance(s.times, int) else int(evaluate(s.times, known))
        if times == 0:
            raise Unbounded(f"a size of 0 does not tell {s.symbol}")
        known[s.symbol] = (value - s.plus) // times
    return known


def readers(values: Sequence[Any]) -> dict[sympy.Symbol, Reader]:
    """How a call tells each symbol that stands alone among what the tracer saw of its arguments.

    That is a number, or a tensor's size, stride or place in its storage: no size tells where a
    view of an argument begins if the argument is one as well. Sizes and numbers stand before
    what is in memory: a tensor that kept its padding has the strides of that.
    """
    found: dict[sympy.Symbol, Reader] = {}
    tensors = [(i, v) for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    numbers = [(i, v) for i, v in enumerate(values) if isinstance(v, torch.SymInt)]
    places: list[tuple[Any, Reader]] = [(v, partial(_number, i)) for i, v in numbers]
    places += [(n, partial(_size, i, d)) for i, v in tensors for d, n in enumerate(v.shape)]
    places += [(n, partial(_stride, i, d)) for i, v in tensors for d, n in enumerate(v.stride())]
    places += [(v.storage_offset(), partial(_offset, i)) for i, v in tensors]
    for value, reader in places:
        if isinstance(symbol := expression(value), sympy.Symbol):
            found.setdefault(symbol, reader)
    return found


def _number(index: int, arguments: Sequence[Any]) -> Any:
    return arguments[index]


def _size(index: int, dim: int, arguments: Sequence[Any]) -> Any:
    return arguments[index].shape[dim]


def _stride(index: int, dim: int, arguments: Sequence[Any]) -> Any:
    return arguments[index].stride(dim)


def _offset(index: int, arguments: Sequence[Any]) -> Any:
    return arguments[index].storage_offset()


def _places(interface: Any, shapes: Sequence[Sequence[sympy.Expr]]) -> list[_Place]:
    places: list[_Place] = []
    for i, node in enumerate(interface.numbers):
        if isinstance(node.meta["val"], torch.SymInt):
            places.append((expression(node.meta["val"]), i, None))
    for i, exprs in enumerate(shapes):
        places += [(expr, i, d) for d, expr in enumerate(exprs)]
    return places


def _source(
    symbol: sympy.Symbol, places: Sequence[_Place], known: Iterable[sympy.Symbol]
) -> Source | None:
    """Where `symbol` stands alone, or else multiplied by what is known."""
    products = []
    for expr, i, d in places:
        if symbol not in expr.free_symbols:
            continue
        constant = expr.as_coeff_Add()[0]
        times = quotient(expr - constant, symbol)
        if times is None:
            continue
        if is_static(times):
            return Source(symbol, i, d, int(times), int(constant))
        if times.free_symbols <= set(known):
            products.append(Source(symbol, i, d, times))
    return products[0] if products else None
