# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on sizes in a graph, evaluated with the sizes of one call.

With dynamic shapes Dynamo passes sizes to a graph as numbers and computes with them in
nodes of their own. A program has static shapes, so its numbers are constants: each
combination of numbers is a program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch.fx import Node

from torchtpu_compile.placement import is_number, tensors_of
from torchtpu_compile.symbols import evaluate as evaluate_expression
from torchtpu_compile.symbols import expression

_READS_TENSOR = frozenset(
    {"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"}
)


def reads_tensor(node: Node) -> bool:
    """Whether a number is a property of a tensor (``sym_size``) and not arithmetic."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        node.target._schema.name in _READS_TENSOR
    )


def reads_host(node: Node) -> bool:
    """Whether a number is a property of a tensor that is not on the device."""
    if not reads_tensor(node):
        return False
    return any(t.device.type != "tpu" for t in tensors_of(node.all_input_nodes[0]))


def leaves(node: Node) -> list[Node]:
    """The nodes outside of number arithmetic that a number is computed from."""
    if not is_number(node):
        return [node]
    return [leaf for source in node.all_input_nodes for leaf in leaves(source)]


def evaluate(
    node: Node, lookup: Callable[[Node], Any], known: Container[Node] = frozenset()
) -> Any:
    """The value of a number node, from `lookup` of its leaves and of what is `known`."""
    if not is_number(node) or node in known:
        return lookup(node)
    args, kwargs = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda source: evaluate(source, lookup, known)
    )
    if reads_tensor(node):
        name = node.target._schema.name  # type: ignore[union-attr]
        in_memory = name in ("aten::sym_stride", "aten::sym_storage_offset")
        source = node.all_input_nodes[0]
        is_own = source.op == "placeholder" or source.meta.get("unbacked_bindings")
        if in_memory and not is_own and "val" in node.meta:
            return _of_trace(node, lookup)
        return _property(name, *args)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _of_trace(node: Node, lookup: Callable[[Node], Any]) -> Any:
    """Where an intermediate lies in memory, as the tracer saw it: its value does not say.

    Its own sizes are looked at too: an input may be gone once nothing else needs it.
    """
    known: dict[Any, int] = {}
    for source in (*node.graph.find_nodes(op="placeholder"), *node.all_input_nodes):
        with contextlib.suppress(KeyError):
            traced, value = source.meta.get("val"), lookup(source)
            is_tensor = isinstance(traced, torch.Tensor)
            sizes = zip(traced.shape, value.shape, strict=True) if is_tensor else [(traced, value)]
            known |= {expression(e): n for e, n in sizes if isinstance(e, torch.SymInt)}
    found = node.meta["val"]
    return found if isinstance(found, int) else evaluate_expression(expression(found), known)


def _property(name: str, value: Any, dim: int | None = None) -> Any:
    if name == "aten::sym_size":
        return value.shape[dim] if dim is not None else tuple(value.shape)
    if name == "aten::sym_numel":
        return value.numel() if isinstance(value, torch.Tensor) else value.size
    if name == "aten::sym_storage_offset":
        return value.storage_offset() if isinstance(value, torch.Tensor) else 0
    strides = value.stride() if isinstance(value, torch.Tensor) else contiguous(value.shape)
    return strides[dim] if dim is not None else tuple(strides)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill their memory without gaps, dimensions in any order."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True
