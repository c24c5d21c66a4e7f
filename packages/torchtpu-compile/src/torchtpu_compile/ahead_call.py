# SPDX-License-Identifier: Apache-2.0
"""How a model in an ahead-of-time file is called, and where what it returns comes from.

A program has operands and results; the model it was made from had arguments in containers,
some of them plain values, may write to its buffers and arguments, and may return an argument,
a weight or a number as it is. What connects them is kept as plain JSON. Containers and plain
values are compared, not interpreted: a call that differs in them is refused, unless it is
another way to write the same one (`ahead_parameters`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchtpu_compile import ahead_containers, ahead_parameters, ahead_sizes
from torchtpu_compile.ahead_containers import Container, UnknownContainer
from torchtpu_compile.ahead_sizes import OpenSizes
from torchtpu_compile.errors import AOTFileError, GraphError

#: What an item is, in a manifest: a pair of one of these and an index, a value or a form.
RESULT, ARGUMENT, WEIGHT, VALUE, SIZE = "result", "argument", "weight", "value", "size"
#: What the kinds of a graph's outputs that are new values of something are written to.
_TARGETS = {
    OutputKind.BUFFER_MUTATION: WEIGHT,
    OutputKind.PARAMETER_MUTATION: WEIGHT,
    OutputKind.USER_INPUT_MUTATION: ARGUMENT,
}
#: Of the text of a plain value in an error, in characters.
_LONGEST = 60
#: What a program's checks raise, by name.
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (IndexError, RuntimeError, ValueError, ZeroDivisionError, torch.linalg.LinAlgError)
}


class Call:
    """How a loaded model is called.

    Args:
        name: of the model.
        stated: what `stated_call` made.

    Attributes:
        sizes: forms of the sizes of each tensor, in order.
    """

    def __init__(self, name: str, stated: Mapping[str, Any]) -> None:
        self._name = name
        self._containers, self._leaves = stated["containers"], stated["leaves"]
        self._bounds, self._sources = stated["bounds"], stated["sources"]
        self._parameters = stated["parameters"]
        self.sizes = [leaf["size"] for leaf in self._leaves if "size" in leaf]

    def tensors_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], dict[str, int]]:
        """The tensors of a call, in order, and the value of each open size.

        Raises:
            AOTFileError: it differs in containers, sizes, dtypes or plain values.
        """
        try:
            containers, leaves = _flatten(
                *ahead_parameters.arranged(self._parameters, args, kwargs)
            )
        except (ahead_parameters.BadCall, UnknownContainer) as error:
            raise AOTFileError(
                f"{self._name!r} cannot be called so: {error}. It was compiled for the arguments "
                f"{self._shown()}."
            ) from error
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        known = ahead_sizes.true_sizes(self._sources, [t.shape for t in tensors])
        if (
            known is None
            or containers != self._containers
            or not ahead_sizes.is_within(known, self._bounds)
            or [_stated(leaf) for leaf in leaves] != [_at(leaf, known) for leaf in self._leaves]
        ):
            containers, leaves = _flatten(args, kwargs)
            raise AOTFileError(
                f"{self._name!r} was compiled for the arguments {self._shown()}, but was called "
                f"with {_shown(containers, map(_stated, leaves))}. Call it so, or make a file for "
                "these with torch_tpu.compile.aot."
            )
        return tensors, known

    def _shown(self) -> str:
        bounds = ahead_sizes.shown_bounds(self._bounds)
        return f"{_shown(self._containers, self._leaves)}{bounds}"


def stated_call(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sizes: OpenSizes,
    shapes: Sequence[Sequence[Any]],
) -> dict[str, Any]:
    """The call of a model as plain JSON.

    Args:
        model: the model.
        args: its example.
        kwargs: further ones.
        sizes: its open sizes.
        shapes: of each tensor as the tracer saw it, in the order of a call.

    Raises:
        GraphError: an argument is in a container that a file cannot state.
    """
    try:
        containers, leaves = _flatten(args, kwargs)
    except UnknownContainer as error:
        raise GraphError(
            f"an argument is a container that a file cannot state: {error}. Use tuples, lists, "
            "dicts, named tuples or dataclasses."
        ) from error
    left = iter(shapes)
    stated = [_stated(leaf) for leaf in leaves]
    for item in stated:
        if "size" in item:
            item["size"] = [sizes.form(size) for size in next(left)]
    return {
        "containers": containers,
        "leaves": stated,
        "bounds": sizes.bounds,
        "sources": sizes.sources,
        "parameters": ahead_parameters.stated_parameters(model, args, kwargs),
    }


def _flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Container, list[Any]]:
    return ahead_containers.flatten((tuple(args), dict(kwargs)), in_order=True)


def _stated(leaf: Any) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"value": repr(leaf)}
    kind = "" if leaf.layout is torch.strided else f" {leaf.layout}"
    return {"dtype": str(leaf.dtype).removeprefix("torch."), "size": list(leaf.shape), "kind": kind}


def _at(stated: dict[str, Any], known: Mapping[str, int]) -> dict[str, Any]:
    """A stated leaf with the values of its sizes."""
    if "size" not in stated:
        return stated
    return {**stated, "size": [ahead_sizes.value(form, known) for form in stated["size"]]}


def _shown(containers: Container, leaves: Iterable[Mapping[str, Any]]) -> str:
    """A call with ``float32[2, 4]`` in place of each tensor, names in order."""
    texts = [
        _short(leaf["value"])
        if "value" in leaf
        else f"{leaf['dtype']}{_sizes(leaf['size'])}{leaf['kind']}"
        for leaf in leaves
    ]
    assert containers is not None
    left = iter(texts)
    (_, args), (_, names, values) = containers[1]
    items = [ahead_containers.shown(part, left) for part in args]
    items += [f"{n}={ahead_containers.shown(v, left)}" for n, v in zip(names, values, strict=True)]
    return f"({', '.join(items)})"


def _short(text: str) -> str:
    """The text of a plain value, on one line; that of an array would fill a screen."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _sizes(forms: Sequence[ahead_sizes.Form]) -> str:
    return f"[{', '.join(map(ahead_sizes.shown, forms))}]"


def user_tensors(exported: ExportedProgram) -> list[str]:
    """The inputs of a captured graph that are tensors of the call, in the order of `Call`."""
    signature = exported.graph_signature
    given = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    # The graph has keywords in the order of the example, or of the signature.
    args, kwargs = pytree.tree_unflatten(list(range(len(given))), exported.call_spec.in_spec)
    places = [i for i in _flatten(args, kwargs)[1] if isinstance(i, int)]
    return [given[i].name for i in places if isinstance(given[i], TensorArgument)]


def updated(exported: ExportedProgram) -> set[str]:
    """The names of the weights that a captured model writes."""
    specs = exported.graph_signature.output_specs
    return {str(spec.target) for spec in specs if _TARGETS.get(spec.kind) == WEIGHT}


def updates_of(
    exported: ExportedProgram, arguments: Sequence[str], weights: Sequence[str]
) -> list[tuple[str, int]]:
    """What the first outputs of a captured graph are new values of: weights and arguments."""
    found = []
    for spec in exported.graph_signature.output_specs:
        if (kind := _TARGETS.get(spec.kind)) is not None:
            names = arguments if kind == ARGUMENT else weights
            found.append((kind, names.index(spec.target)))
    return found


def source_of(
    value: Any,
    results: Sequence[Node],
    arguments: Sequence[str],
    weights: Mapping[Node, int],
    sizes: OpenSizes,
) -> tuple[str, Any]:
    """Where a call gets an item that the model returns, or writes.

    Raises:
        GraphError: from nowhere.
    """
    if isinstance(value, Node):
        if value in results:
            return RESULT, results.index(value)
        if value.name in arguments:
            return ARGUMENT, arguments.index(value.name)
        if value in weights:
            return WEIGHT, weights[value]
        if isinstance(value.meta.get("val"), (torch.SymInt, torch.SymFloat)):
            return SIZE, sizes.form(value.meta["val"])
        value = value.meta.get("val", value)  # a number that became static
    if value is None or type(value) in (bool, int, float, str):
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
