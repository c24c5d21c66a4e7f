# SPDX-License-Identifier: Apache-2.0
"""Results of a graph that share memory with each other, as they do in eager PyTorch.

A program's results are arrays of their own. Where several results are views of one
tensor of the graph, or the elements of one do not fill its memory (``y[:, 0]``, an
expanded tensor), the program returns that tensor once and the views are made of it after
each call. A single view whose elements do fill its memory (``y.t()``, ``y[1:]``) is a tensor
of its own with the strides of eager, but no ``_base``: nobody else sees its memory.

Results that are views of inputs are made of the arguments. AOTAutograd makes most of them
anew, by the place of what the graph returns. Those that it hides from autograd (the parts of
``unbind``, what a custom function returns as it came) and those of tensor subclasses, whose
parts it does not look at, the caller gets as they are.
"""

from __future__ import annotations

import enum
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
from torchtpu_compile.size_sources import Reader, readers
from torchtpu_compile.symbols import evaluate, expression


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
    def symbols(self) -> set[sympy.Symbol]:
        """What its place depends on."""
        return set().union(*(e.free_symbols for e in (*self.size, *self.stride, self.offset)))

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
        readers: of the symbols of open ones.
        with_gradients: whether autograd is to track the results. Of a view it would ask for
            its base; these share memory only.
    """

    views: Mapping[int, OutputView]
    readers: Mapping[sympy.Symbol, Reader]
    with_gradients: bool

    def restoring(self, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """`run` with the views made of its results."""
        fixed = {i: v.place({}) for i, v in self.views.items() if not v.is_open}
        make = sharing if self.with_gradients else torch.as_strided

        def restored(arguments: list[Any]) -> list[Any]:
            known = {symbol: read(arguments) for symbol, read in self.readers.items()}
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
    known = _readers(module)
    results = list(output.args[0])
    in_arguments = _views_of_arguments(results, known)
    views: dict[int, OutputView] = {}
    for index, (argument, view) in in_arguments.items():
        results[index], views[index] = argument, view
    roots = [_root(node, known) for node in results[:count]]
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
    needed = {symbol: known[symbol] for view in views.values() for symbol in view.symbols}
    return OutputViews(views, needed, count is not None)


def _views_of_arguments(
    results: Sequence[Any], known: Mapping[sympy.Symbol, Reader]
) -> dict[int, tuple[Node, OutputView]]:
    """The results that lie in an argument: that argument, and where in it they lie.

    Of those that AOTAutograd makes anew it asks for their place only; the others it neither
    makes nor copies.
    """
    found: dict[int, tuple[Node, OutputView]] = {}
    for index, (kind, argument) in _kinds(results).items():
        node = results[index]
        if kind is _Kind.OTHER or not isinstance(node, Node) or node.op == "placeholder":
            continue
        if kind is _Kind.IN_ARGUMENT:
            argument = _origin(node)
            if argument.op != "placeholder" or any(is_input_write(user) for user in argument.users):
                continue
        if argument is None or not _is_known(node, known) or not _is_known(argument, known):
            continue
        view = _view_in(argument, node)
        if view is not None and view.dtype is None and not view.is_conj and not view.is_neg:
            found[index] = argument, view
    return found


def _view_in(argument: Node, node: Node) -> OutputView | None:
    """A view of an argument, or of the value that replaces an argument's, as one of the argument.

    That value has no gaps in the graph where the argument has some: the tracer is asked again.
    """
    origin = _origin(node)
    place, ours, theirs = (n.meta["val"] for n in (node, argument, origin))
    if ours.shape != theirs.shape or ours.dtype is not theirs.dtype:
        return None
    if list(map(expression, ours.stride())) == list(map(expression, theirs.stride())):
        return OutputView.of(place, theirs, is_argument=True)
    try:
        place = _viewed_again(node, origin, ours)
    except RuntimeError:  # no view of memory with gaps: AOTAutograd took a copy for one
        return None
    return OutputView.of(place, ours, is_argument=True)


def _viewed_again(node: Node, origin: Node, value: torch.Tensor) -> Any:
    """What the views between `origin` and `node` make of another value."""
    if node is origin:
        return value
    assert isinstance(node.args[0], Node)
    source = _viewed_again(node.args[0], origin, value)
    args, keywords = torch.fx.map_arg((node.args[1:], node.kwargs), lambda n: n.meta["val"])
    return node.target(source, *args, **keywords)  # type: ignore[operator]


class _Kind(enum.Enum):
    """What becomes of a result that AOTAutograd takes for a view."""

    #: It makes the view of the input after the graph has run.
    MADE_ANEW = enum.auto()
    #: The caller gets what the graph returns, which may lie in an argument.
    IN_ARGUMENT = enum.auto()
    OTHER = enum.auto()


def _kinds(results: Sequence[Any]) -> dict[int, tuple[_Kind, Node | None]]:
    """What AOTAutograd found out of the results of the forward graph that it compiles now.

    Of those that it makes anew, too, the argument that it makes them of.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return {}
    arguments = _arguments(results, len(metadata.tokens))
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    found: dict[int, tuple[_Kind, Node | None]] = {}
    for index, info in enumerate(metadata.output_info[: len(results) - first], first):
        kind, base = _kind(results[index], info), info.base_idx
        is_anew = kind is _Kind.MADE_ANEW and base is not None and base < len(arguments)
        found[index] = kind, arguments[base] if is_anew else None
    return found


def _arguments(results: Sequence[Any], tokens: int) -> list[Node]:
    """The arguments by the number that AOTAutograd gives them; none if there are subclasses."""
    node = next((r for r in results if isinstance(r, Node)), None)
    inputs = [] if node is None else [n for n in node.graph.nodes if n.op == "placeholder"]
    if any(isinstance(n.meta.get("desc"), SubclassGetAttrAOTInput) for n in inputs):
        return []
    return inputs[tokens:]


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


def _readers(module: GraphModule) -> dict[sympy.Symbol, Reader]:
    return readers([n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"])


def _root(node: Any, known: Mapping[sympy.Symbol, Reader]) -> Node | None:
    """The tensor of the graph that a result is a view of; None: not ours to restore."""
    if not isinstance(node, Node) or not _is_known(node, known):
        return None
    node = _origin(node)
    if node.op != "call_function" or not _is_known(node, known):
        return None
    value = node.meta["val"]
    view = OutputView.of(value, value)
    is_flagged = view.is_conj or view.is_neg
    return node if view.offset == 0 and view.is_own_memory and not is_flagged else None


def _is_known(node: Node, known: Mapping[sympy.Symbol, Reader]) -> bool:
    """Whether a node is a tensor of the device whose place in memory a call can tell."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    numbers_ = (*value.shape, *value.stride(), value.storage_offset())
    if all(isinstance(n, int) for n in numbers_):
        return True
    return all(symbol in known for n in numbers_ for symbol in expression(n).free_symbols)
