# SPDX-License-Identifier: Apache-2.0
"""Ops of Inductor's graphs that have no rule for padded sizes, from operators that have one.

The backend `tpu` gives AOTAutograd its own decompositions; Inductor gives its own, which leave
some operators whole. In a graph with open sizes those would make one program per size.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torchtpu_core.runtime import tables

from torchtpu_compile.decompositions import has_rule, missing_rows


def take_apart(module: GraphModule) -> None:
    """Replace what has no rule, where the graph has open sizes and a decomposition is known.

    Args:
        module: a functional graph; a node's value is in ``meta["val"]``.
    """
    if not any(_is_open(node) for node in module.graph.nodes):
        return
    forms = missing_rows(tables.current(), open_sizes=True)
    for node in list(module.graph.nodes):
        has_form = node.op == "call_function" and node.target in forms
        if has_form and not has_rule(node.target) and _gives_tensors(node):
            _replace(node, forms)
    module.recompile()


def _is_open(node: Node) -> bool:
    return any(
        isinstance(size, torch.SymInt)
        for value in pytree.tree_leaves(node.meta.get("val"))
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
    )


def _gives_tensors(node: Node) -> bool:
    """Whether it computes tensors; a size of a tensor has nothing to be taken apart."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) for value in values)


def _replace(node: Node, forms: Mapping[Any, Callable[..., Any]]) -> None:
    """Put the graph of a node's decomposition in its place; one with constants is left out."""
    sources = node.all_input_nodes
    part = _traced(node, sources, forms)
    if any(inner.op == "get_attr" for inner in part.nodes):
        return
    places = dict(zip(part.find_nodes(op="placeholder"), sources, strict=True))
    with node.graph.inserting_before(node):
        for inner in part.nodes:
            if inner.op == "call_function":
                copied = node.graph.node_copy(inner, places.__getitem__)
                copied.meta = {**node.meta, **inner.meta, **_origin(node)}
                places[inner] = copied
    results = torch.fx.node.map_arg(part.output_node().args[0], places.__getitem__)
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])  # type: ignore[arg-type, index]
                node.graph.erase_node(user)
    node.graph.erase_node(node)


def _traced(node: Node, sources: list[Node], forms: Mapping[Any, Callable[..., Any]]) -> Graph:
    """The graph of one node's decomposition; an input for each of `sources`."""

    def call(*values: Any) -> Any:
        given = dict(zip(sources, values, strict=True))
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    values = [source.meta["val"] for source in sources]
    # What a decomposition makes of numbers alone has no operand that would make it fake.
    with torch._guards.detect_fake_mode(values) or contextlib.nullcontext():
        traced: GraphModule = make_fx(call, decomposition_table=dict(forms))(*values)
    return traced.graph


def _origin(node: Node) -> dict[str, Any]:
    """What says where in the user's code a node is from."""
    return {k: node.meta[k] for k in ("stack_trace", "nn_module_stack") if k in node.meta}
