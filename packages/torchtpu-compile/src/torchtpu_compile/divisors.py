# SPDX-License-Identifier: Apache-2.0
"""Numbers by which a graph divides its sizes are fixed, as the length of a block is.

With ``dynamic=True`` Dynamo makes a symbol of every int that a function takes. Where sizes are
rounded up to a multiple of one, padding for all its values would be many times the tensor; a
program for each value is what the script means. The guard that a division states makes Dynamo
trace again for another value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree


def fix(graph: Graph) -> None:
    """Guard the value of each int among the inputs by which a size of the graph is divided.

    A backward graph, whose guards are made already, stays as it is.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    of_tensors = {s for n in inputs for size in _sizes(n) for s in size.node.expr.free_symbols}
    open_ints = {
        value.node.expr: value
        for value in (n.meta.get("val") for n in inputs)
        if isinstance(value, torch.SymInt)
        and isinstance(value.node.expr, sympy.Symbol)
        and value.node.expr not in of_tensors
        and not value.node.shape_env.frozen
    }
    if not open_ints:
        return
    divisors = {s for n in graph.nodes for size in _sizes(n) for s in _divisors(size.node.expr)}
    for symbol, value in open_ints.items():
        if symbol in divisors:
            int(value)


def _sizes(node: Node) -> Iterator[torch.SymInt]:
    """The open sizes of the tensors among a node's results."""
    values: list[Any] = pytree.tree_leaves(node.meta.get("val"))
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from (size for size in value.shape if isinstance(size, torch.SymInt))


def _divisors(expr: sympy.Expr) -> set[sympy.Symbol]:
    divisions = [e for e in expr.atoms(sympy.Function) if type(e).__name__ == "FloorDiv"]
    return {symbol for e in divisions for symbol in e.args[1].free_symbols}
