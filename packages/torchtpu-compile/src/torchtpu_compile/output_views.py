# SPDX-License-Identifier: Apache-2.0
"""Results of a graph that share memory with each other, as they do in eager PyTorch.

A program's results are arrays of their own. Where several results are views of one
tensor of the graph, or one is expanded, the program returns that tensor once and the
views are made of it after each call. Results that are views of inputs, and all results
of a graph with gradients, are AOTAutograd's business, which makes them anew itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchtpu_compile import numbers


@dataclass(frozen=True, slots=True)
class OutputView:
    """How a result lies in the storage of the tensor that is returned in its place.

    Attributes:
        size: its sizes.
        stride: its strides.
        offset: of its first element.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def share(module: GraphModule) -> dict[int, OutputView]:
    """Let a graph return what its results are views of; what to make of which result."""
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if not isinstance(output.args[0], (list, tuple)):
        return {}
    results = list(output.args[0])
    groups: dict[Node, set[Node]] = {}
    for node in results:
        root = _root(node)
        if root is not None:
            groups.setdefault(root, set()).add(node)
    views: dict[int, OutputView] = {}
    for index, node in enumerate(results):
        root = _root(node)
        if root is None or root is node:
            continue
        if len(groups[root]) > 1 or _is_expanded(node.meta["val"]):
            value = node.meta["val"]
            views[index] = OutputView(
                tuple(value.shape), tuple(value.stride()), value.storage_offset()
            )
            results[index] = root
    if views:
        output.args = (results,)
    return views


def restoring(
    run: Callable[[list[Any]], list[Any]], views: dict[int, OutputView]
) -> Callable[[list[Any]], list[Any]]:
    """`run` with the views made of its results."""

    def restored(arguments: list[Any]) -> list[Any]:
        results = list(run(arguments))
        with torch.no_grad():
            for index, view in views.items():
                results[index] = results[index].as_strided(view.size, view.stride, view.offset)
        return results

    return restored


def _root(node: Any) -> Node | None:
    """The tensor of the graph that a result is a view of; None: not ours to restore."""
    if not isinstance(node, Node) or not _is_fixed(node):
        return None
    dtype, flags = node.meta["val"].dtype, _lazy_flags(node.meta["val"])
    while (source := _viewed(node)) is not None:
        node = source
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    value = node.meta["val"]
    if not _is_fixed(node) or value.storage_offset() != 0 or value.dtype is not dtype:
        return None
    same = flags == _lazy_flags(value)
    return node if same and numbers.is_dense(value.shape, value.stride()) else None


def _lazy_flags(value: torch.Tensor) -> tuple[bool, bool]:
    return value.is_conj(), value.is_neg()


def _viewed(node: Node) -> Node | None:
    """The tensor that a node is a view of."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
        return None
    returns: Sequence[Any] = node.target._schema.returns
    if not returns or returns[0].alias_info is None or returns[0].alias_info.is_write:
        return None
    return node.args[0] if isinstance(node.args[0], Node) else None


def _is_fixed(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    return all(isinstance(s, int) for s in sizes)


def _is_expanded(value: torch.Tensor) -> bool:
    return any(
        stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)
    )
