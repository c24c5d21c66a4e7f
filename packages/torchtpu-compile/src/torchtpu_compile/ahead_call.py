# SPDX-License-Identifier: Apache-2.0
"""How a model in an ahead-of-time file is called, and where what it returns comes from.

A program has operands and results; the model it was made from had arguments in containers,
some of them plain values, and may return an argument, a weight or a number as it is. What
connects the two is kept as plain JSON. Containers and plain values are compared, not
interpreted: a call that differs in them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchtpu_compile.errors import AOTFileError, GraphError

#: What a returned item is, in a manifest: a pair of one of these and an index or a value.
RESULT, ARGUMENT, WEIGHT, VALUE = "result", "argument", "weight", "value"
#: What a program's checks raise, by name.
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (IndexError, RuntimeError, ValueError, ZeroDivisionError, torch.linalg.LinAlgError)
}


def described(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call with ``float32[2, 4]`` in place of each tensor, names in order."""
    shown = pytree.tree_map(_described, _ordered((tuple(args), dict(kwargs))))
    items = [*map(repr, shown[0]), *(f"{name}={value!r}" for name, value in shown[1].items())]
    return f"({', '.join(items)})"


def _ordered(tree: Any) -> Any:
    """The tree with the keys of its dicts in order: callers give them in any."""
    return pytree.tree_map(
        lambda x: {k: _ordered(x[k]) for k in sorted(x, key=str)} if type(x) is dict else x,
        tree,
        is_leaf=lambda x: type(x) is dict,
    )


class _Shown(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _described(leaf: Any) -> _Shown:
    if not isinstance(leaf, torch.Tensor):
        return _Shown(repr(leaf))
    kind = "" if leaf.layout is torch.strided else f" {leaf.layout}"
    return _Shown(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{kind}")


def tensors_of(expected: str, name: str, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors of a call that is `expected`, in order.

    Raises:
        AOTFileError: it differs in containers, sizes, dtypes or plain values.
    """
    found = described(args, kwargs)
    if found != expected:
        raise AOTFileError(
            f"{name!r} was compiled for the arguments {expected}, but was called with {found}. "
            "Call it so, or make a file for these with torch_tpu.compile.aot."
        )
    leaves = pytree.tree_leaves(_ordered((args, dict(kwargs))))
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def user_tensors(exported: Any) -> list[str]:
    """The inputs of a captured graph that are tensors of the call, in the order of `tensors_of`.

    Raises:
        GraphError: the model writes to one of them, or to its buffers.
    """
    signature = exported.graph_signature
    buffers, arguments = signature.buffers_to_mutate, signature.user_inputs_to_mutate
    if buffers:
        raise GraphError(
            f"the model writes to {', '.join(buffers.values())}, which an ahead-of-time file does "
            "not do. Call model.eval() before if they are statistics, or let the model return them."
        )
    if arguments:
        raise GraphError(
            f"the model writes to its argument {', '.join(arguments.values())}, which an "
            "ahead-of-time file does not do. Let it return the new value instead."
        )
    given = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    # The graph has keywords in the order of the example, or of the signature.
    places = pytree.tree_unflatten(list(range(len(given))), exported.call_spec.in_spec)
    in_order = [given[i] for i in pytree.tree_leaves(_ordered(places))]
    return [argument.name for argument in in_order if isinstance(argument, TensorArgument)]


def source_of(
    value: Any, results: Sequence[Node], arguments: Sequence[str], weights: Mapping[Node, int]
) -> tuple[str, Any]:
    """Where a call gets an item that the model returns.

    Raises:
        GraphError: from nowhere.
    """
    if value in results:
        return RESULT, results.index(value)
    if isinstance(value, Node):
        if value.name in arguments:
            return ARGUMENT, arguments.index(value.name)
        if value in weights:
            return WEIGHT, weights[value]
    elif value is None or type(value) in (bool, int, float, str):
        return VALUE, value
    raise GraphError(
        f"the model returns {value}, which is no result of the program, no argument and no plain "
        "value. Return a copy, such as value.clone()."
    )


def errors_of(listed: Sequence[Sequence[str]]) -> list[tuple[type[Exception], str]]:
    """The errors of a program's run-time checks, from class names and messages.

    Raises:
        ValueError: a name is no known class of errors.
    """
    unknown = {name for name, _ in listed} - set(_ERRORS)
    if unknown:
        raise ValueError(f"its checks raise {', '.join(sorted(unknown))}, which is no known error")
    return [(_ERRORS[name], message) for name, message in listed]


def spec_text(spec: Any) -> str:
    """The containers of the results as text.

    Raises:
        GraphError: a container that a file cannot state.
    """
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        reason = str(error).partition(" because")[0].partition(". ")[0]
        raise GraphError(
            f"the model returns a container that a file cannot state: {reason}. Return tuples, "
            "lists and dicts instead."
        ) from error
