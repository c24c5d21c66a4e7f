# SPDX-License-Identifier: Apache-2.0
"""What stands for arithmetic on open numbers, and for ops that take them, on 0-d tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torchtpu_compile.carried_numbers import Rewriter

aten = torch.ops.aten


class Refused(Exception):
    """A use of an open number that no op on tensors stands for."""


#: Writes what stands for a node in the new graph.
Write = Callable[["Rewriter", Node], Node]


def _op(target: Any, **settings: Any) -> Write:
    """Arithmetic that is one op of tensors."""

    def write(graph: Rewriter, node: Node) -> Node:
        operands = [graph.tensor(node, a) for a in node.args]
        return graph.call(node, target, *operands, **settings)

    return write


def _sum(graph: Rewriter, node: Node) -> Node:
    terms = [graph.tensor(node, a) for a in node.args[0]]  # type: ignore[union-attr]
    return functools.reduce(lambda a, b: graph.call(node, aten.add.Tensor, a, b), terms)


#: Arithmetic on numbers, by its function in the graph.
ARITHMETIC: Mapping[Any, Write] = {
    operator.add: _op(aten.add.Tensor),
    operator.sub: _op(aten.sub.Tensor),
    operator.mul: _op(aten.mul.Tensor),
    operator.floordiv: _op(aten.div.Tensor_mode, rounding_mode="floor"),
    operator.mod: _op(aten.remainder.Tensor),
    operator.neg: _op(aten.neg.default),
    operator.lt: _op(aten.lt.Tensor),
    operator.le: _op(aten.le.Tensor),
    operator.gt: _op(aten.gt.Tensor),
    operator.ge: _op(aten.ge.Tensor),
    operator.eq: _op(aten.eq.Tensor),
    operator.ne: _op(aten.ne.Tensor),
    operator.and_: _op(aten.bitwise_and.Tensor),
    operator.or_: _op(aten.bitwise_or.Tensor),
    operator.not_: _op(aten.logical_not.default),
    torch.sym_not: _op(aten.logical_not.default),
    torch.sym_max: _op(aten.maximum.default),
    torch.sym_min: _op(aten.minimum.default),
    torch.sym_ite: _op(aten.where.self),
    torch.sym_sum: _sum,
}


def with_tensors(graph: Rewriter, node: Node) -> Node:
    """The overload of an op that takes tensors where it was given open numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Refused
    arguments = node.target._schema.arguments
    names = {a.name for a, v in zip(arguments, node.args, strict=False) if v in graph.tensors}
    others = [v for v in node.all_input_nodes if v in graph.tensors]
    if len(names) != len(set(others)) or any(v in graph.tensors for v in node.kwargs.values()):
        raise Refused
    packet = node.target.overloadpacket
    for overload in (node.target, *(getattr(packet, o) for o in packet.overloads())):
        types = {a.name: str(a.type) for a in overload._schema.arguments}
        same = [a.name for a in arguments] == list(types)
        if same and all(types[name] in ("Tensor", "Optional[Tensor]") for name in names):
            return graph.call(node, overload, *graph.given(node.args), **graph.given(node.kwargs))
    raise Refused


def _index(graph: Rewriter, node: Node, source: Any, dim: Any, index: Any) -> Node:
    """A row's number as `(1,)`, counted from the front."""
    number = graph.tensor(node, index)
    size = source.meta["val"].shape[dim]
    if not isinstance(size, int):
        size = graph.call(node, aten.sym_size.int, source, dim)
    behind = graph.call(node, aten.add.Tensor, number, size)
    is_negative = graph.call(node, aten.lt.Scalar, number, 0)
    front = graph.call(node, aten.where.self, is_negative, behind, number)
    return graph.call(node, aten.unsqueeze.default, front, 0)


def _select(graph: Rewriter, node: Node) -> Node:
    source, dim, index = node.args
    given = graph.given(source)
    if source in graph.tensors or not isinstance(dim, int):
        raise Refused
    rows = graph.call(
        node, aten.index_select.default, given, dim, _index(graph, node, given, dim, index)
    )
    return graph.call(node, aten.squeeze.dim, rows, dim)


def _select_scatter(graph: Rewriter, node: Node) -> Node:
    target, source, dim, index = node.args
    if not isinstance(dim, int):
        raise Refused
    given = graph.given(target)
    row = graph.call(node, aten.unsqueeze.default, graph.given(source), dim)
    where = _index(graph, node, given, dim, index)
    return graph.call(node, aten.index_copy.default, given, dim, where, row)


def _full(graph: Rewriter, node: Node) -> Node:
    size, value = node.args
    if any(n in graph.tensors for n in pytree.tree_leaves(size) if isinstance(n, Node)):
        raise Refused
    return graph.call(node, aten.expand.default, graph.tensor(node, value), graph.given(size))


def _full_like(graph: Rewriter, node: Node) -> Node:
    if node.args[0] in graph.tensors:
        raise Refused
    given = graph.given(node.args[0])
    shape = [
        s if isinstance(s, int) else graph.call(node, aten.sym_size.int, given, i)
        for i, s in enumerate(given.meta["val"].shape)
    ]
    return graph.call(node, aten.expand.default, graph.tensor(node, node.args[1]), shape)


def _scalar(graph: Rewriter, node: Node) -> Node:
    return graph.tensor(node, node.args[0])


#: Ops that are not an overload with a tensor in the number's place.
OPS: Mapping[Any, Write] = {
    aten.select.int: _select,
    aten.select_scatter.default: _select_scatter,
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.scalar_tensor.default: _scalar,
}
