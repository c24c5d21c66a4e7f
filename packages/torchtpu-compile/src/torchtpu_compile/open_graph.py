# SPDX-License-Identifier: Apache-2.0
"""A few ops of a trace as graphs with symbols for their open sizes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torchtpu_core.runtime import varying
from torchtpu_core.runtime.groups import dense_order
from torchtpu_core.runtime.trace_lowering import Description

from torchtpu_compile.op_graph import OpGraph, new_symbol, read_inputs, without_reports
from torchtpu_compile.padded import Padded, Sizes
from torchtpu_compile.symbols import Unbounded, evaluate, expression

#: A size: a number, or symbol `i` as `(i, a, b)`, of which it is `a` times the value and `b` more.
Size: TypeAlias = int | tuple[int, int, int]
#: Of each op and operand the sizes of the tensor, and those under which its storage is kept, then
#: the numbers of the op, if any.
Pattern: TypeAlias = tuple[tuple[tuple[tuple[Size, ...], tuple[Size, ...]], ...], ...]

_LEAST_HINT = 2  # 0 and 1 are never symbols for PyTorch


class FormError(Unbounded):
    """Why one call of ops of open sizes is not like the others."""


class OpenGraph:
    """Ops that follow each other, with symbols for their open sizes.

    Args:
        description: a call of them.
        pattern: which sizes are open.
        true: their values in this call.

    Attributes:
        ops: each of them.
        reads: (op, input) of each tensor that they get from outside.
        results: sizes of each op's results.
        symbols: the open sizes and numbers.

    Raises:
        Unbounded: they have no form for open sizes.
    """

    def __init__(self, description: Description, pattern: Pattern, true: Sequence[int]) -> None:
        self.pattern = pattern
        try:
            self._trace(description, [None] * len(true))
        except RuntimeError:  # as of a rank above a size that is not open
            self._trace(description, [max(n, _LEAST_HINT) for n in true])

    def _trace(self, description: Description, hints: Sequence[int | None]) -> None:
        env = ShapeEnv()
        self._symints = [new_symbol(env, i, hint) for i, hint in enumerate(hints)]
        self.symbols = [symbol.node.expr for symbol in self._symints]
        self.ops: list[OpGraph] = []
        self.reads: list[tuple[int, int]] = []
        self.results: list[list[list[sympy.Expr]]] = []
        with FakeTensorMode(shape_env=env), without_reports():
            for node, sizes in zip(description["nodes"], self.pattern, strict=True):
                self._add(node, sizes)
        self.guards = [guard.expr for guard in env.guards]

    def _add(self, node: Mapping[str, Any], sizes: Sequence[Any]) -> None:
        made = torch.empty
        if node["only_out"]:
            operands = [made(self._shape(sizes[0][0]), dtype=node["written"][0][2], device="tpu")]
        else:
            operands = []
            for index, ((place, _, view, _), (seen, _)) in enumerate(
                zip(read_inputs(node), sizes, strict=False)
            ):
                operands.append(made(self._shape(seen), dtype=view[2], device="tpu"))
                if place is None or place[0] == "operand":
                    self.reads.append((len(self.ops), index))
        numbers = self._shape(sizes[-1][0]) if varying.numbers_of(node) else ()
        op = OpGraph(node, operands, numbers)
        self.ops.append(op)
        self.results.append([[expression(n) for n in value.shape] for value in op.values])

    def _shape(self, sizes: Sequence[Size]) -> list[int | torch.SymInt]:
        return [
            size if isinstance(size, int) else self._symints[size[0]] * size[1] + size[2]
            for size in sizes
        ]

    def sizes_read(self, op: int, index: int) -> list[sympy.Expr]:
        """The sizes of an operand as an op sees it."""
        return [expression(n) for n in self.ops[op].operands[index].meta["val"].shape]

    @property
    def values(self) -> list[tuple[list[sympy.Expr], int]]:
        """The sizes of all operands and results, and the bytes of an element of each."""
        operands = [node.meta["val"] for op in self.ops for node in op.operands]
        tensors = [*operands, *(value for op in self.ops for value in op.values)]
        return [([expression(n) for n in t.shape], t.itemsize) for t in tensors]

    @functools.cached_property
    def shaping(self) -> tuple[bool, ...]:
        """Of each symbol, whether it is part of a size; the other ones are numbers only."""
        exprs = [e for read in self.reads for e in self.sizes_read(*read)]
        exprs += [e for of_op in self.results for of_one in of_op for e in of_one]
        used = {symbol for e in exprs for symbol in e.free_symbols}
        return tuple(symbol in used for symbol in self.symbols)

    def require(self, description: Description, true: Sequence[int]) -> None:
        """Refuse a call whose results would not have the sizes that the trace foresees.

        Raises:
            FormError: so.
        """
        known = dict(zip(self.symbols, true, strict=True))
        for node, results in zip(description["nodes"], self.results, strict=True):
            specs = [tuple(sizes) for sizes, _, _ in _specs(node)]
            if [tuple(evaluate(e, known) for e in exprs) for exprs in results] != specs:
                raise FormError("it does not keep its form at some sizes")
        if any(g.xreplace(known) != sympy.true for g in self.guards):
            raise FormError("it does not keep its form at some sizes")


def link_form(described: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How an op reads a result of another: the dimensions of both in the order of memory.

    Raises:
        Unbounded: it reads a part of it, or reads elements more than once.
    """
    _, base, view, _ = described
    orders = dense_order(*base[:2]), dense_order(*view[:2])
    if orders[0] is None or orders[1] is None:
        raise Unbounded("a result is read by a view that is not all of it")
    return orders[0], orders[1]


def arranged(
    x: Padded, described: Sequence[Any], exprs: Sequence[sympy.Expr], sizes: Sizes
) -> Padded:
    """A result as the op that reads it sees it.

    Args:
        x: the result, in the shape of its storage's value.
        described: the input of the op that reads it.
        exprs: the sizes that it has there.
        sizes: of the program.
    """
    kept, seen = link_form(described)
    x = _transposed(x, kept)
    x = sizes.reshaped(x, [exprs[d] for d in seen])
    return _transposed(x, [seen.index(d) for d in range(len(seen))])


def _transposed(x: Padded, order: Sequence[int]) -> Padded:
    if list(order) == list(range(len(order))):
        return x
    return Padded(jnp.transpose(x.array, order), tuple(x.dims[d] for d in order))


def _specs(node: Mapping[str, Any]) -> Iterator[Any]:
    for _, specs in node["outs"]:
        yield from specs
    yield from node["written"]
