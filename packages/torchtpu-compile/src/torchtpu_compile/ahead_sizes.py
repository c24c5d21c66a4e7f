# SPDX-License-Identifier: Apache-2.0
"""Open sizes of a model in an ahead-of-time file.

The file holds one program per combination of padded sizes up to the declared bounds, and
what says which true sizes a call has and where its results end. A size is stated as a
*form*: an int, the name of a symbol, or a list of a function's name and forms.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import sympy
import torch
from torch.export import Dim, ShapesCollection
from torch.export.exported_program import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from torchtpu_compile.buckets import coarse
from torchtpu_compile.errors import AOTFileError, GraphError
from torchtpu_compile.size_sources import sources_of
from torchtpu_compile.symbols import FUNCTIONS, Unbounded, expression

#: How many programs a file may hold; beyond, every other bucket of a size is left out.
MOST_PROGRAMS = 16

Form = int | float | str | list[Any]
#: Inclusive lower and upper bounds of symbols, by name.
Bounds = Mapping[str, Sequence[int]]


def declared(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], given: Any
) -> Any:
    """What ``dynamic_shapes=``, else ``mark_dynamic``, says, in the form of `torch.export`.

    Raises:
        GraphError: it names a dimension that a tensor does not have.
        TypeError: the example lacks an argument, or has one too many.
    """
    if given is None:
        given = ShapesCollection()
        for tensor in pytree.tree_leaves((args, kwargs)):
            if dims := _marks(tensor):
                given[tensor] = dims
        if not len(given):
            return None
    if hasattr(given, "dynamic_shapes"):  # it knows the tensors by identity: now, not on the device
        given = given.dynamic_shapes(model, tuple(args), dict(kwargs))
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    if isinstance(given, Mapping):
        return _placed(bound, given, "")
    if isinstance(given, (list, tuple)):
        pairs = zip(bound.items(), given, strict=False)
        placed = [_placed(value, said, name) for (name, value), said in pairs]
        return type(given)([*placed, *given[len(placed) :]])
    raise GraphError(
        f"dynamic_shapes is {given!r}, which names no argument. Give a dict from the names of "
        "arguments, or a tuple in their order, to dicts from dimensions to sizes, such as "
        "{'x': {0: torch.export.Dim('n', max=512)}}."
    )


def _placed(value: Any, said: Any, place: str) -> Any:
    """What is said of the sizes of `value`, with dimensions counted from the front."""
    if isinstance(value, torch.Tensor) and isinstance(said, Mapping):
        return {_dim(dim, value, place): size for dim, size in said.items()}
    if isinstance(value, Mapping) and isinstance(said, Mapping):
        inside = f"{place}[{{!r}}]" if place else "{}"
        return {
            key: _placed(value[key], part, inside.format(key)) if key in value else part
            for key, part in said.items()
        }
    if type(said) in (list, tuple) and isinstance(value, (list, tuple)) and len(said) == len(value):
        pairs = enumerate(zip(value, said, strict=True))
        return type(said)(_placed(item, part, f"{place}[{i}]") for i, (item, part) in pairs)
    return said


def _dim(dim: Any, tensor: torch.Tensor, place: str) -> int:
    """A dimension counted from the front.

    Raises:
        GraphError: the tensor has no such one.
    """
    if type(dim) is not int or not -tensor.ndim <= dim < tensor.ndim:
        raise GraphError(
            f"the argument {place} has no dimension {dim!r} that could be open: its size is "
            f"{list(tensor.shape)}. Name one from {-tensor.ndim} to {tensor.ndim - 1}."
            if tensor.ndim
            else f"the argument {place} has no dimensions, so {dim!r} cannot be open. Leave it out."
        )
    return dim % tensor.ndim


def _marks(leaf: Any) -> dict[int, Any]:
    marked = sorted(getattr(leaf, "_dynamo_dynamic_indices", ()))
    ranges = {r.dim: (r.min, r.max) for r in getattr(leaf, "_dynamo_dynamic_range", ())}
    return {d: Dim.DYNAMIC(*ranges.get(d, (None, None))) for d in marked}


class OpenSizes:
    """The symbols of a captured model.

    Args:
        exported: the model.
        arguments: the names of its tensor arguments, in the order of a call.

    Attributes:
        names: of the symbols.
        bounds: of each name.
        sources: how a call tells the value of each name: index and dim of a tensor, what it is
            multiplied by there, and what is added.

    Raises:
        GraphError: a size has no upper bound, or the arguments do not tell it.
    """

    def __init__(self, exported: ExportedProgram, arguments: Sequence[str]) -> None:
        nodes = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
        shapes = [[expression(s) for s in nodes[name].meta["val"].shape] for name in arguments]
        symbols = {symbol for exprs in shapes for e in exprs for symbol in e.free_symbols}
        try:
            found = sources_of(symbols, SimpleNamespace(numbers=()), shapes)
        except Unbounded as error:
            raise GraphError(
                f"the arguments do not tell every open size: {error}. Declare a dimension of that "
                "size alone."
            ) from error
        self.names = {source.symbol: f"s{i}" for i, source in enumerate(found)}
        self.bounds: dict[str, list[int]] = {}
        for source in found:
            place = f"dimension {source.dim} of the argument {arguments[source.index]}"
            limits = _limits(_declared_range(exported, source.symbol), place)
            self.bounds[self.names[source.symbol]] = limits
        self.sources = [
            [self.names[s.symbol], s.index, s.dim, self.form(sympy.sympify(s.times)), s.plus]
            for s in found
        ]

    def form(self, size: Any) -> Form:
        """A size as a form.

        Raises:
            GraphError: it has a form that sizes rarely have.
        """
        return _form(expression(size), self.names)

    def combinations(self, symbols: Sequence[sympy.Symbol]) -> list[dict[sympy.Symbol, int]]:
        """The padded sizes of the file's programs; the last are the bounds themselves."""
        buckets = [_buckets(*self.bounds[self.names[symbol]]) for symbol in symbols]
        while math.prod(map(len, buckets)) > MOST_PROGRAMS:
            longest = max(buckets, key=len)
            buckets[buckets.index(longest)] = longest[::-1][::2][::-1]  # keeps the bound
        return [dict(zip(symbols, sizes, strict=True)) for sizes in itertools.product(*buckets)]


def _declared_range(exported: ExportedProgram, symbol: sympy.Symbol) -> Any:
    """The range of a symbol.

    Where it was declared for a multiple such as ``8*n``, torch.export starts that of `n` at 2.
    """
    found = exported.range_constraints.get(symbol)
    for expr, limits in exported.range_constraints.items():
        if expr != symbol and expr.free_symbols == {symbol} and limits.lower.is_Integer:
            times, plus = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
            if expr == times * symbol + plus and times > 0:
                lower = sympy.ceiling((limits.lower - plus) / times)
                found = ValueRanges(min(found.lower, lower), found.upper)
    return found


def _limits(limits: Any, place: str) -> list[int]:
    """Lower and upper bound of a size.

    Raises:
        GraphError: there is no upper one.
    """
    upper = getattr(limits, "upper", None)
    if upper is None or not upper.is_Integer or upper >= 2**40:
        raise GraphError(
            f"{place} is open without an upper bound, and a file holds programs up to one. Declare "
            "it, such as torch.export.Dim('n', max=512) in dynamic_shapes, or "
            "mark_dynamic(x, dim, max=512)."
        )
    return [int(limits.lower), int(upper)]


def _buckets(lower: int, upper: int) -> list[int]:
    found, size = [], max(lower, 1)
    while size < upper:
        found.append(min(coarse(size), upper))
        size = found[-1] + 1
    return found if found and found[-1] == upper else [*found, upper]


def _form(expr: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> Form:
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if expr.is_number and isinstance(expr, (sympy.Float, sympy.Rational)):
        return float(expr)
    if expr in names:
        return names[expr]
    name = type(expr).__name__
    if name not in FUNCTIONS:
        raise GraphError(
            f"the model has a tensor of size {expr}, which a file cannot state. Cut or pad it to "
            "a size that the arguments have."
        )
    return [name, *(_form(part, names) for part in expr.args)]


def value(form: Form, known: Mapping[str, int]) -> Any:
    """The value of a form.

    Raises:
        ValueError: it is no form.
    """
    if isinstance(form, str):
        return known[form]
    if not isinstance(form, list):
        return form
    name, *parts = form
    if name not in FUNCTIONS:
        raise ValueError(f"{name!r} is no function of sizes")
    return FUNCTIONS[name](*(value(part, known) for part in parts))


def true_sizes(
    sources: Iterable[Sequence[Any]], shapes: Sequence[Sequence[int]]
) -> dict[str, int] | None:
    """The value of each symbol in a call with tensors of `shapes`; None: they do not fit."""
    known: dict[str, int] = {}
    for name, index, dim, times, plus in sources:
        if index >= len(shapes) or dim >= len(shapes[index]):
            return None
        factor = value(times, known)
        if factor == 0:
            return None
        known[name] = (shapes[index][dim] - plus) // factor
    return known


def is_within(known: Mapping[str, int], bounds: Bounds) -> bool:
    """Whether sizes are those that were declared."""
    return all(bounds[name][0] <= size <= bounds[name][1] for name, size in known.items())


def shown_bounds(bounds: Bounds) -> str:
    """`` with s0 from 2 to 64``, or nothing."""
    texts = [f"{name} from {low} to {high}" for name, (low, high) in bounds.items()]
    return f" with {' and '.join(texts)}" if texts else ""


def smallest(programs: Sequence[Sequence[int]], true: Sequence[int]) -> int:
    """The index of the smallest program that holds true sizes.

    Raises:
        AOTFileError: none does: the file was changed by hand.
    """
    fitting = [i for i, sizes in enumerate(programs) if all(map(int.__ge__, sizes, true))]
    if not fitting:
        raise AOTFileError(f"the file has no program for sizes of {list(true)}. Compile it anew.")
    return min(fitting, key=lambda i: math.prod(programs[i]))


#: Functions of sizes that are shown between their arguments.
_INFIX = {"Add": " + ", "Mul": "*", "FloorDiv": " // ", "Mod": " % ", "PythonMod": " % "}


def shown(form: Form) -> str:
    """A form as text, such as ``2*s0``."""
    if not isinstance(form, list):
        return str(form)
    name, *parts = form
    texts = [f"({shown(p)})" if isinstance(p, list) else str(p) for p in parts]
    return _INFIX[name].join(texts) if name in _INFIX else f"{name}({', '.join(texts)})"
