# SPDX-License-Identifier: Apache-2.0
"""Results of a graph that share memory with each other, as they do in eager PyTorch.

A program's results are arrays of their own. Where several results are views of one
tensor of the graph, or the elements of one do not fill its memory (``y[:, 0]``, an
expanded tensor), the program returns that tensor once and the views are made of it after
each call. Results that are views of inputs are AOTAutograd's business, which makes them
anew itself; those that it hides from autograd (the parts of ``unbind``, what a custom
function returns as it came) and those of tensor subclasses, whose parts it does not look at,
are made of the arguments here. A single view whose elements
do fill its memory (``y.t()``, ``y[1:]``) is a tensor of its own with the strides of eager,
but no ``_base``: nobody else sees its memory.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._functorch._aot_autograd.descriptors import (
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch.fx import GraphModule, Node

from torchtpu_compile import numbers
from torchtpu_compile.placement import is_input_write, viewed
from torchtpu_compile.result_layout import memory_order, sharing
from torchtpu_compile.symbols import evaluate, expression

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
        dtype: what the memory is read as; None: as what it was written.
        is_conj: whether it is the lazy conjugate of what lies there.
        is_neg: whether it is the lazy negative of it.
        is_argument: whether that tensor is an argument, which may begin anywhere in its storage.
    """

    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    is_open: bool
    dtype: torch.dtype | None
    is_conj: bool
    is_neg: bool
    is_argument: bool = False

    @classmethod
    def of(cls, value: torch.Tensor, root: torch.Tensor, is_argument: bool = False) -> OutputView:
        """The place of a tensor, as the tracer saw it, in the storage of another one."""
        size, stride = (tuple(map(expression, given)) for given in (value.shape, value.stride()))
        offset = expression(value.storage_offset())
        offset -= expression(root.storage_offset()) if is_argument else 0
        is_open = any(e.free_symbols for e in (*size, *stride, offset))
        dtype = None if value.dtype is root.dtype else value.dtype
        flags = value.is_conj(), value.is_neg()
        return cls(size, stride, offset, is_open, dtype, *flags, is_argument)

    def place(self, known: Mapping[sympy.Symbol, int]) -> tuple[list[int], list[int], int]:
        """Sizes, strides and offset for given symbols."""
        size, stride = ([evaluate(e, known) for e in given] for given in (self.size, self.stride))
        return size, stride, evaluate(self.offset, known)

    @property
    def is_own_memory(self) -> bool:
        """Whether its elements fill the memory between its first and its last one."""
        if not self.is_open:
            size, stride, _ = self.place({})
            return numbers.is_dense(size, stride)
        return memory_order(self.size, self.stride) is not None


@dataclass(frozen=True, slots=True)
class OutputViews:
    """The views to make of a graph's results.

    Attributes:
        views: by the index of the result.
        sources: where the symbols of open ones are among the arguments.
        with_gradients: whether autograd is to track the results. Of a view it would ask for
            its base; these share memory only.
    """

    views: Mapping[int, OutputView]
    sources: Mapping[sympy.Symbol, Source]
    with_gradients: bool

    def restoring(self, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """`run` with the views made of its results."""
        fixed = {i: v.place({}) for i, v in self.views.items() if not v.is_open}
        make = sharing if self.with_gradients else torch.as_strided

        def restored(arguments: list[Any]) -> list[Any]:
            known = {
                symbol: arguments[i] if dim is None else arguments[i].shape[dim]
                for symbol, (i, dim) in self.sources.items()
            }
            results = list(run(arguments))
            with torch.no_grad():
                for index, view in self.views.items():
                    place = fixed[index] if index in fixed else view.place(known)
                    if view.is_argument:
                        results[index] = _part_of(results[index], *place)
                        continue
                    results[index] = _flagged(make(_read_as(results[index], view), *place), view)
            return results

        return restored


def _part_of(
    argument: torch.Tensor, size: list[int], stride: list[int], offset: int
) -> torch.Tensor:
    return argument.as_strided(size, stride, argument.storage_offset() + offset)


def _read_as(root: torch.Tensor, view: OutputView) -> torch.Tensor:
    """The memory of `root` as the dtype of a view."""
    if view.dtype is None:
        return root
    if root.is_complex():
        root = torch.view_as_real(root)
    if root.dtype is view.dtype:
        return root
    return root.as_strided((root.numel(),), (1,)).view(view.dtype)


def _flagged(value: torch.Tensor, view: OutputView) -> torch.Tensor:
    value = value.conj() if view.is_conj else value
    return torch._neg_view(value) if view.is_neg else value


def share(module: GraphModule, count: int | None = None) -> OutputViews | None:
    """Let a graph return what its results are views of; what to make of them, if anything.

    Args:
        module: the graph; its output node is changed.
        count: how many of its results the user sees, the rest being for a backward graph;
            None: all, and there is none.
    """
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if not isinstance(output.args[0], (list, tuple)):
        return None
    sources = _sources(module)
    results = list(output.args[0])
    views = _views_of_arguments(results, sources)
    for index in views:
        results[index] = _origin(results[index])
    roots = [_root(node, sources) for node in results[:count]]
    groups: dict[Node, set[Node]] = {}
    for node, root in zip(results, roots, strict=False):
        if root is not None:
            groups.setdefault(root, set()).add(node)
    for index, (node, root) in enumerate(zip(results, roots, strict=False)):
        if root is None or root is node:
            continue
        view = OutputView.of(node.meta["val"], root.meta["val"])
        if len(groups[root]) > 1 or not view.is_own_memory:
            views[index] = view
            results[index] = root
    if not views:
        return None
    output.args = (results,)
    is_open = any(view.is_open for view in views.values())
    return OutputViews(views, sources if is_open else {}, count is not None)


def _views_of_arguments(
    results: Sequence[Any], sources: Mapping[sympy.Symbol, Source]
) -> dict[int, OutputView]:
    """The results that lie in an argument, which AOTAutograd neither makes anew nor copies."""
    found: dict[int, OutputView] = {}
    for index, kind in _kinds(results).items():
        node = results[index]
        if kind is not _Kind.IN_ARGUMENT or not isinstance(node, Node):
            continue
        origin = _origin(node)
        if origin.op != "placeholder" or any(is_input_write(user) for user in origin.users):
            continue
        if _is_known(node, sources) and _is_known(origin, sources):
            view = OutputView.of(node.meta["val"], origin.meta["val"], is_argument=True)
            if view.dtype is None and not view.is_conj and not view.is_neg:
                found[index] = view
    return found


class _Kind(enum.Enum):
    """What becomes of a result that AOTAutograd takes for a view."""

    #: It makes the view of the input after the graph has run.
    MADE_ANEW = enum.auto()
    #: The caller gets what the graph returns, which may lie in an argument.
    IN_ARGUMENT = enum.auto()
    OTHER = enum.auto()


def _kinds(results: Sequence[Any]) -> dict[int, _Kind]:
    """What AOTAutograd found out of the results of the forward graph that it compiles now."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return {}
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    infos = enumerate(metadata.output_info[: len(results) - first], first)
    return {index: _kind(results[index], info) for index, info in infos}


def _kind(node: Any, info: Any) -> _Kind:
    kind = info.output_type.name
    if kind == "custom_function_view" or (kind == "non_alias" and info.base_idx is not None):
        return _Kind.IN_ARGUMENT  # it hides from autograd that it is a view
    if kind not in ("alias_of_input", "is_input"):
        return _Kind.OTHER
    return _Kind.IN_ARGUMENT if _is_part(node) else _Kind.MADE_ANEW


def _is_part(node: Any) -> bool:
    """Whether a result or what it is a view of is a part of a tensor subclass.

    Of a subclass AOTAutograd makes anew the whole, if anything.
    """
    if not isinstance(node, Node) or node.op == "placeholder":
        return False
    if isinstance(_origin(node).meta.get("desc"), SubclassGetAttrAOTInput):
        return True
    output = node.graph.output_node()
    described = zip(output.args[0], output.meta.get("desc") or (), strict=False)
    return any(n is node and isinstance(d, SubclassGetAttrAOTOutput) for n, d in described)


def _origin(node: Node) -> Node:
    """What a node is a view of, through all views between; itself if it is none."""
    while (source := viewed(node)) is not None:
        node = source
    return node


def save_apart(module: GraphModule, count: int | None) -> None:
    """Give the backward graph a value of its own where the user gets a view of an input.

    AOTAutograd makes such a result of open size anew by its geometry, without its values.

    Args:
        module: the graph; its output node is changed.
        count: how many of its results the user sees; None: all.
    """
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if count is None or not isinstance(output.args[0], (list, tuple)):
        return
    results = list(output.args[0])
    seen = {n for n in results[:count] if isinstance(n, Node) and _is_open_view(n)}
    for index, node in enumerate(results):
        if index >= count and node in seen:
            with module.graph.inserting_before(output):
                results[index] = module.graph.call_function(torch.ops.aten.alias.default, (node,))
            results[index].meta = dict(node.meta)
    output.args = (results,)


def keep_values(module: GraphModule) -> None:
    """Make results of open size tensors of their own where only this graph takes them for views.

    What AOTAutograd takes for a view of an input it makes anew, and needs no values for. An
    operator that it took for one (``channel_shuffle``) may become views when it is taken apart.

    Args:
        module: a forward or inference graph that AOTAutograd compiles now; its output node is
            changed.
    """
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if not isinstance(output.args[0], (list, tuple)):
        return
    results = list(output.args[0])
    kinds = _kinds(results)
    if not kinds:
        return
    in_arguments = _views_of_arguments(results, _sources(module))
    bases = torch._guards.TracingContext.get().fw_metadata.num_intermediate_bases
    for index in range(min(kinds), min(max(kinds) + 1 + bases, len(results))):
        node = results[index]
        if kinds.get(index) is _Kind.MADE_ANEW or index in in_arguments:
            continue
        if not isinstance(node, Node) or not _is_open_view(node) or is_piece(node):
            continue
        with module.graph.inserting_before(output):
            results[index] = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        results[index].meta = dict(node.meta)
    output.args = (results,)


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
    node = _origin(node)
    if node.op != "call_function" or not _is_known(node, sources):
        return None
    value = node.meta["val"]
    view = OutputView.of(value, value)
    is_flagged = view.is_conj or view.is_neg
    return node if view.offset == 0 and view.is_own_memory and not is_flagged else None


def is_piece(node: Node) -> bool:
    """Whether it is a view of one of several that an op made (``split``, ``unbind``)."""
    chain: Node | None = node
    while chain is not None and chain.target is not operator.getitem:
        chain = viewed(chain)
    return chain is not None


def is_view_of_input(node: Node) -> bool:
    """Whether AOTAutograd will make this result anew, as a view of an input; not of gradients."""
    inputs = (n.name for n in node.graph.nodes if n.op == "placeholder")
    if any(name.startswith("tangents") for name in inputs):
        return False
    return _origin(node).op == "placeholder"


def _is_open_view(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not has_open_place(value):
        return False
    return node.op != "placeholder" and is_view_of_input(node)


def has_open_place(value: torch.Tensor) -> bool:
    """Whether a size, a stride or the offset of a tensor is open."""
    place = (*value.shape, *value.stride(), value.storage_offset())
    return not all(isinstance(n, int) for n in place)


def _is_known(node: Node, sources: Mapping[sympy.Symbol, Source]) -> bool:
    """Whether a node is a tensor of the device whose place in memory a call can tell."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    numbers_ = (*value.shape, *value.stride(), value.storage_offset())
    if all(isinstance(n, int) for n in numbers_):
        return True
    return all(symbol in sources for n in numbers_ for symbol in expression(n).free_symbols)
