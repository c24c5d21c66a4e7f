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


def described(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call with ``float32[2, 4]`` in place of each tensor."""
    shown = pytree.tree_map(_described, (tuple(args), dict(kwargs)))
    items = [*map(repr, shown[0]), *(f"{name}={value!r}" for name, value in shown[1].items())]
    return f"({', '.join(items)})"


class _Shown(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _described(leaf: Any) -> _Shown:
    if not isinstance(leaf, torch.Tensor):
        return _Shown(repr(leaf))
    return _Shown(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}")


def tensors_of(expected: str, name: str, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors of a call that is `expected`, in order.

    Raises:
        AOTFileError: it differs in containers, sizes, dtypes or plain values.
    """
    kwargs = dict(sorted(kwargs.items()))
    found = described(args, kwargs)
    if found != expected:
        raise AOTFileError(
            f"{name!r} was compiled for the arguments {expected}, but was called with {found}. "
            "Call it so, or make a file for these with torch_tpu.compile.aot."
        )
    return [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]


def user_tensors(exported: Any) -> list[str]:
    """The inputs of a captured graph that are tensors of the call, by name.

    Raises:
        GraphError: the model writes to one of them, or to its buffers.
    """
    signature = exported.graph_signature
    buffers, arguments = signature.buffers_to_mutate, signature.user_inputs_to_mutate
    if buffers:
        raise GraphError(
            f"the model writes to {', '.join(buffers.values())}, which an ahead-of-time file does "
            "not do. Call model.eval() before."
        )
    if arguments:
        raise GraphError(
            f"the model writes to its argument {', '.join(arguments.values())}, which an "
            "ahead-of-time file does not do. Let it return the new value instead."
        )
    return [
        spec.arg.name
        for spec in signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]


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
