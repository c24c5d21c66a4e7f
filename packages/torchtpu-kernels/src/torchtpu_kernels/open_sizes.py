# SPDX-License-Identifier: Apache-2.0
"""Sizes that a compiled graph leaves open, as JAX's symbolic dimensions and back.

JAX can find the shapes of a function's results for dimensions that are names. So PyTorch's
tracer learns the sizes of a kernel's results as expressions of the operands' sizes, without
fixing one. It fails where the function asks what only a number answers (``n % 8 == 0``); then
the kernel is left out of the graph.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jax import export

_scope = export.SymbolicScope()


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known of a tensor while Dynamo traces; an open size is a name.

    Attributes:
        shape: numbers and symbolic dimensions.
        dtype: of the tensor.
    """

    shape: tuple[Any, ...]
    dtype: torch.dtype
    requires_grad = False


def dimension(size: int | str) -> Any:
    """A size as JAX takes it; a name becomes a symbolic dimension."""
    return export.symbolic_shape(size, scope=_scope)[0] if isinstance(size, str) else int(size)


def plain(size: Any) -> Any:
    """A size as a number, unless it is a symbolic dimension."""
    return size if export.is_symbolic_dim(size) else int(size)


def named(shapes: Sequence[Sequence[Any]]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Shapes with a name in place of each open size, equal ones alike; and what the names mean."""
    names: dict[Any, str] = {}
    meaning: dict[str, Any] = {}

    def of(size: Any) -> Any:
        if not isinstance(size, torch.SymInt) or size.node.expr.is_number:
            return plain(size)
        name = names.setdefault(size.node.expr, f"d{len(names)}")
        meaning.setdefault(name, size)
        return dimension(name)

    return [tuple(of(size) for size in shape) for shape in shapes], meaning


def valued(shape: Sequence[Any], meaning: Mapping[str, Any]) -> tuple[Any, ...]:
    """A shape of JAX in terms of what the names of its open sizes mean, if that is known."""
    if not meaning:
        return tuple(shape)
    return tuple(
        _value(ast.parse(str(size).replace("^", "**"), mode="eval").body, meaning)
        if export.is_symbolic_dim(size)
        else size
        for size in shape
    )


#: The text of a symbolic dimension (the syntax of `jax.export.symbolic_shape`) as sizes of PyTorch.
_OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}


def _value(node: ast.expr, meaning: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return meaning[name]
        case ast.UnaryOp(op=op, operand=inner):
            return _OPERATIONS[type(op)](_value(inner, meaning))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_value(left, meaning), _value(right, meaning))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _OPERATIONS[name](*(_value(a, meaning) for a in args))
    raise NotImplementedError(f"a size of the form {ast.unparse(node)}")


@contextlib.contextmanager
def blocks_allowed() -> Iterator[None]:
    """Let Pallas calls have blocks of open size while shapes are found; nothing is compiled."""
    from jax._src.pallas.core import pallas_export_experimental

    with pallas_export_experimental(dynamic_shapes=True):
        yield


def is_open(shapes: Sequence[Sequence[Any]]) -> bool:
    """Whether a size is a symbolic dimension."""
    return any(export.is_symbolic_dim(size) for shape in shapes for size in shape)
