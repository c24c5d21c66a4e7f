# SPDX-License-Identifier: Apache-2.0
"""Numbers to whose multiple a graph rounds its sizes up are fixed, as the length of a block is.

With ``dynamic=True`` Dynamo makes a symbol of every int that a function takes. No symbol tells a
bound of such a size, and padding for all lengths of a block would be many times the tensor. The
guard that fixes the number makes Dynamo trace again for another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree


def fix(graph: Graph) -> None:
    """Guard the value of each int among the inputs to whose multiple a size is rounded up.

    A backward graph, whose guards are made already, stays as it is.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    of_tensors = {s for n in inputs for size in _sizes(n) for s in size.node.expr.free_symbols}
    open_ints = {
        value.node.expr: value
        for value in (n.meta.get("val") for n in inputs)
        if isinstance(value, torch.SymInt)
        and isinstance(value.node.expr, sympy.Symbol)
        and not free_unbacked_symbols(value)
        and value.node.expr not in of_tensors
        and not value.node.shape_env.frozen
    }
    if not open_ints:
        return
    multiples = {s for n in graph.nodes for size in _sizes(n) for s in _multiples(size.node.expr)}
    for symbol, value in open_ints.items():
        if symbol in multiples:
            int(value)


def _sizes(node: Node) -> Iterator[torch.SymInt]:
    """The open sizes of the tensors among a node's results."""
    values: list[Any] = pytree.tree_leaves(node.meta.get("val"))
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from (size for size in value.shape if isinstance(size, torch.SymInt))


def _multiples(expr: sympy.Expr) -> set[sympy.Expr]:
    """To whose multiple something is rounded: `n` of ``n * ((s + n - 1) // n)``."""
    return {
        division.args[1]
        for product in expr.atoms(sympy.Mul)
        for division in product.args
        if type(division).__name__ == "FloorDiv" and division.args[1] in product.args
    }
