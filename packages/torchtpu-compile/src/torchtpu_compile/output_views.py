# SPDX-License-Identifier: Apache-2.0
"""Results of a graph that share memory with each other, as they do in eager PyTorch.

A program's results are arrays of their own. Where several results are views of one
tensor of the graph, or one is expanded, the program returns that tensor once and the
views are made of it after each call. Results that are views of inputs, and all results
of a graph with gradients, are AOTAutograd's business, which makes them anew itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from torchtpu_compile import numbers
from torchtpu_compile.result_layout import dense_strides
from torchtpu_compile.symbols import evaluate, expression, same

#: Where the value of a symbol is: an argument, and which of its sizes; None: itself.
Source = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class OutputView:
    """How a result lies in the storage of the tensor that is returned in its place.

    Attributes:
        size: its sizes.
        stride: its strides.
        offset: of its first element.
        is_open: whether they depend on sizes of the call.
        is_part: whether it is the real or imaginary part of a complex tensor.
    """

    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    is_open: bool
    is_part: bool

    @classmethod
    def of(cls, value: torch.Tensor, root: torch.Tensor) -> OutputView:
        """The place of a tensor, as the tracer saw it, in the storage of another one."""
        size, stride = (tuple(map(expression, given)) for given in (value.shape, value.stride()))
        offset = expression(value.storage_offset())
        is_open = any(e.free_symbols for e in (*size, *stride, offset))
        return cls(size, stride, offset, is_open, root.is_complex() and not value.is_complex())

    def place(self, known: Mapping[sympy.Symbol, int]) -> tuple[list[int], list[int], int]:
        """Sizes, strides and offset for given symbols."""
        size, stride = ([evaluate(e, known) for e in given] for given in (self.size, self.stride))
        return size, stride, evaluate(self.offset, known)


@dataclass(frozen=True, slots=True)
class OutputViews:
    """The views to make of a graph's results.

    Attributes:
        views: by the index of the result.
        sources: where the symbols of open ones are among the arguments.
    """

    views: Mapping[int, OutputView]
    sources: Mapping[sympy.Symbol, Source]

    def restoring(self, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """`run` with the views made of its results."""
        fixed = {i: v.place({}) for i, v in self.views.items() if not v.is_open}

        def restored(arguments: list[Any]) -> list[Any]:
            known = {
                symbol: arguments[i] if dim is None else arguments[i].shape[dim]
                for symbol, (i, dim) in self.sources.items()
            }
            results = list(run(arguments))
            with torch.no_grad():
                for index, view in self.views.items():
                    place = fixed[index] if index in fixed else view.place(known)
                    root = results[index]
                    root = torch.view_as_real(root) if view.is_part else root
                    results[index] = root.as_strided(*place)
            return results

        return restored


def share(module: GraphModule) -> OutputViews | None:
    """Let a graph return what its results are views of; what to make of them, if anything."""
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if not isinstance(output.args[0], (list, tuple)):
        return None
    sources = _sources(module)
    results = list(output.args[0])
    roots = [_root(node, sources) for node in results]
    groups: dict[Node, set[Node]] = {}
    for node, root in zip(results, roots, strict=True):
        if root is not None:
            groups.setdefault(root, set()).add(node)
    views: dict[int, OutputView] = {}
    for index, (node, root) in enumerate(zip(results, roots, strict=True)):
        if root is None or root is node:
            continue
        view = OutputView.of(node.meta["val"], root.meta["val"])
        if len(groups[root]) > 1 or view.is_part or _is_expanded(view):
            views[index] = view
            results[index] = root
    if not views:
        return None
    output.args = (results,)
    is_open = any(view.is_open for view in views.values())
    return OutputViews(views, sources if is_open else {})


def _sources(module: GraphModule) -> dict[sympy.Symbol, Source]:
    """Where each symbol is among the arguments."""
    found: dict[sympy.Symbol, Source] = {}
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    for index, node in enumerate(inputs):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            found[expression(value)] = index, None
        elif isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                found.setdefault(expression(size), (index, dim))
    return {symbol: place for symbol, place in found.items() if isinstance(symbol, sympy.Symbol)}


def _root(node: Any, sources: Mapping[sympy.Symbol, Source]) -> Node | None:
    """The tensor of the graph that a result is a view of; None: not ours to restore."""
    if not isinstance(node, Node) or not _is_known(node, sources):
        return None
    dtype, flags = node.meta["val"].dtype, _lazy_flags(node.meta["val"])
    while (source := viewed(node)) is not None:
        node = source
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    value = node.meta["val"]
    if not _is_known(node, sources) or flags != _lazy_flags(value):
        return None
    if value.dtype is not dtype and not (value.is_complex() and dtype is value.dtype.to_real()):
        return None
    return node if _fills_its_storage(OutputView.of(value, value)) else None


def _fills_its_storage(view: OutputView) -> bool:
    """Whether a result lies in its storage as this tensor does in its own."""
    if view.offset != 0:
        return False
    if not view.is_open:
        size, stride, _ = view.place({})
        return numbers.is_dense(size, stride)
    return all(map(same, view.stride, dense_strides(view.size)))


def _lazy_flags(value: torch.Tensor) -> tuple[bool, bool]:
    return value.is_conj(), value.is_neg()


def viewed(node: Node) -> Node | None:
    """The tensor that a node is a view of."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
        return None
    returns: Sequence[Any] = node.target._schema.returns
    if not returns or returns[0].alias_info is None or returns[0].alias_info.is_write:
        return None
    return node.args[0] if isinstance(node.args[0], Node) else None


def _is_known(node: Node, sources: Mapping[sympy.Symbol, Source]) -> bool:
    """Whether a node is a tensor of the device whose place in memory a call can tell."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    numbers_ = (*value.shape, *value.stride(), value.storage_offset())
    if all(isinstance(n, int) for n in numbers_):
        return True
    return all(symbol in sources for n in numbers_ for symbol in expression(n).free_symbols)


def _is_expanded(view: OutputView) -> bool:
    return any(
        stride == 0 and size != 1 for size, stride in zip(view.size, view.stride, strict=True)
    )
