# SPDX-License-Identifier: Apache-2.0
"""Programs of `torch.export`, given where a model is expected.

Such a program brings its example, its open sizes and its containers with it. It is taken as it
is: nothing is traced again, and the given one is left as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from torchtpu_compile import ahead_containers
from torchtpu_compile.ahead_containers import Container


def example_of(
    model: Any, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any = None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The example inputs of a model, or those that an exported program has itself.

    Raises:
        TypeError: a model without example inputs, or an exported program with others.
    """
    if not isinstance(model, ExportedProgram):
        if args is None:
            raise TypeError(
                "the example arguments are missing. Give a tuple of them, such as (x,)."
            )
        return args, {} if kwargs is None else kwargs
    if args is not None or kwargs is not None or dynamic_shapes is not None:
        raise TypeError(
            "an ExportedProgram has its own example and open sizes. Leave args, kwargs and "
            "dynamic_shapes out, and give them to torch.export.export."
        )
    if model.example_inputs is None:
        raise TypeError(
            "this ExportedProgram has lost its example inputs. Give aot the model and its "
            "arguments, or the program as torch.export.export or torch.export.load returns it."
        )
    given, named = model.example_inputs
    return given, named


def callee(model: Any) -> Any:
    """What has the parameters of a model's call as its ``forward``."""
    return model.module() if isinstance(model, ExportedProgram) else model


def on_the_device(exported: ExportedProgram) -> ExportedProgram:
    """The program on the device; weights that are there already are shared with the given one."""
    module = copy.deepcopy(exported.graph_module)
    for given, own in zip(exported.graph.nodes, module.graph.nodes, strict=True):
        own.name = given.name  # a copy renames what Python has a name for, such as `input`
    moved = ExportedProgram(
        module,
        module.graph,
        copy.deepcopy(exported.graph_signature),
        dict(exported.state_dict),
        dict(exported.range_constraints),
        list(exported.module_call_graph),
        constants=dict(exported.constants),
        verifiers=exported.verifiers,
    )
    return move_to_device_pass(moved, "tpu")


class _Place:
    """The index of a result, where a value will be (no dataclass: those are containers)."""

    def __init__(self, index: int) -> None:
        self.index = index


def returned_by(exported: ExportedProgram) -> tuple[Container, list[Any]]:
    """The containers of what a program returns, and their leaves: places of results, or values.

    A class may have more fields than `torch.export` sees leaves, such as those that are None.

    Raises:
        UnknownContainer: a container that a file cannot state.
    """
    spec = exported.call_spec.out_spec
    assert spec is not None
    places = [_Place(i) for i in range(spec.num_leaves)]
    return ahead_containers.flatten(pytree.tree_unflatten(places, spec))


def return_leaves(exported: ExportedProgram, leaves: Sequence[Any]) -> None:
    """Let a graph return `leaves`, as `returned_by` gave them, after the values that it writes."""
    output = exported.graph_module.graph.output_node()
    specs = exported.graph_signature.output_specs
    specs = [spec for spec in specs if spec.kind is not OutputKind.TOKEN]  # taken out before
    pairs = list(zip(output.args[0], specs, strict=True))  # type: ignore[arg-type]
    results = [value for value, spec in pairs if spec.kind is OutputKind.USER_OUTPUT]
    written = [value for value, spec in pairs if spec.kind is not OutputKind.USER_OUTPUT]
    found = [results[leaf.index] if isinstance(leaf, _Place) else leaf for leaf in leaves]
    output.args = ((*written, *found),)
