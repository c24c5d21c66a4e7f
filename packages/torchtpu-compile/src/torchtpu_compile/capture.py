# SPDX-License-Identifier: Apache-2.0
"""The graph of a whole model, by torch.export, in a form that one program can hold.

torch.export keeps more of a model than Dynamo hands to a backend: the device its example was
on, composite ops, checks of dtypes, effects in order. This takes them out; it leaves what no
program can do to `export`, which refuses it.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.effects import with_effects
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.runtime import recurrent_layers, tables

from torchtpu_compile import ahead_call, ahead_containers, exported_programs
from torchtpu_compile.ahead_containers import Container
from torchtpu_compile.decompositions import in_program, missing_rows
from torchtpu_compile.errors import GraphError, user_line

_METADATA_CHECK = torch.ops.aten._assert_tensor_metadata.default
_LINALG_CHECK = torch.ops.aten._linalg_check_errors.default


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured model.

    Attributes:
        exported: its graph; what it returns is flat.
        returned: the containers of what it returns.
        arguments: the inputs of the graph that are tensors of a call, in its order.
    """

    exported: ExportedProgram
    returned: Container
    arguments: list[str]


def captured(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any = None,
) -> Captured:
    """The model's graph on the device, taken apart to what has a lowering.

    Args:
        model: the module, or what torch.export made of one.
        args: example inputs.
        kwargs: further ones.
        dynamic_shapes: which of their sizes are open, as `torch.export` takes it.

    Raises:
        Exception: what torch.export raises for code that it cannot capture.
        GraphError: the model computes derivatives, whose values torch.export loses, or returns
            a container that cannot be stated.
    """
    opened = _Opened()
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        ahead_containers.registered_dataclasses((args, kwargs)),
    ):
        # PyTorch copies its own descriptions of containers in a way that it warns of.
        warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated", FutureWarning)
        # Its recurrent layers keep lists of their own parameters.
        warnings.filterwarnings("ignore", ".*_flat_weights.* were assigned during export")
        if isinstance(model, ExportedProgram):
            exported = exported_programs.on_the_device(model)
            opened.container, leaves = exported_programs.returned_by(model)
        else:
            exported = _on_the_device(model, args, kwargs, dynamic_shapes, opened)
        for node in _nodes(exported.graph_module):
            if node.target is _METADATA_CHECK:  # a program has the dtypes it was traced with
                node.graph.erase_node(node)
        composites = _composites()
        _serve(exported.graph_module, composites)
        rows = missing_rows(tables.current(), open_sizes=bool(exported.range_constraints))
        exported = exported.run_decompositions({**composites, **rows})
        _without_tokens(exported)
        if isinstance(model, ExportedProgram):
            exported_programs.return_leaves(exported, leaves)
        return Captured(exported, opened.container, ahead_call.user_tensors(exported))


class _Opened:
    """Takes what a model returns out of its containers, and remembers them."""

    container: Container = None

    def __call__(self, model: torch.nn.Module, args: Any, value: Any) -> tuple[Any, ...]:
        """A hook for the results of a module."""
        try:
            self.container, leaves = ahead_containers.flatten(value)
        except ahead_containers.UnknownContainer as error:
            raise GraphError(
                f"the model returns a container that a file cannot state: {error}. Return tuples, "
                "lists, dicts, named tuples or dataclasses instead."
            ) from error
        return tuple(leaves)


def _on_the_device(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    opened: _Opened,
) -> ExportedProgram:
    """The exported model.

    What is on the CPU altogether is captured there and moved then, for its code may make
    tensors of the default device. Recurrent layers of open length are not: on the CPU they are
    taken apart step by step.
    """
    state = [*model.parameters(), *model.buffers()]
    given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    stays = all(t.device.type == "cpu" for t in (*state, *given))
    if dynamic_shapes is not None and any(isinstance(m, nn.RNNBase) for m in model.modules()):
        stays = False
    if not stays:
        args, kwargs = _moved(args), _moved(kwargs)
    if not stays and any(t.device.type != "tpu" for t in state):
        model = copy.deepcopy(model).to("tpu")
    hook = model.register_forward_hook(opened)
    try:
        exported = torch.export.export(model, args, dict(kwargs), dynamic_shapes=dynamic_shapes)
    finally:
        hook.remove()
    _forget_transformed(exported)
    return move_to_device_pass(exported, "tpu") if stays else exported


def _moved(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


def _forget_transformed(exported: ExportedProgram) -> None:
    """Drop what was seen of values within `torch.func`'s transforms, which are over.

    Raises:
        GraphError: a value is one within a derivative.
    """
    functorch = torch._C._functorch
    for node in _nodes(exported.graph_module):
        leaves = pytree.tree_leaves(node.meta.get("val"))
        values = [x for x in leaves if isinstance(x, torch.Tensor)]
        if any(functorch.is_gradtrackingtensor(x) for x in values):
            line = user_line(node)
            raise GraphError(
                f"the model takes a derivative{f' (at {line})' if line else ''}, which "
                "torch.export does not capture. Use torch.compile, or give the model the "
                "derivative's formula."
            )
        if any(functorch.is_functorch_wrapped_tensor(x) for x in values):
            node.meta["val"] = None


def _nodes(module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of the graphs within it."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield from list(part.graph.nodes)
            part.recompile()


def _serve(module: GraphModule, composites: Mapping[Any, Any]) -> None:
    """Call what a composite op with a kernel of the device is made of, which PyTorch keeps whole.

    Recurrent layers become what they are on the device: one op per layer and direction.
    """
    rows = tables.current()
    served = {op: f for op, f in composites.items() if overload_name(op) in rows}
    served |= recurrent_layers.implementations()
    for node in _nodes(module):
        if node.op == "call_function":
            node.target = served.get(node.target, node.target)  # type: ignore[arg-type]


def _composites() -> dict[Any, Any]:
    """What composite ops are made of: torch.export, unlike Dynamo, leaves them whole."""
    rows = tables.current()
    return {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and not in_program(op, rows)
    }


def _without_tokens(exported: ExportedProgram) -> None:
    """Let the checks of matrices, which have an order among the effects, be checks of a program."""
    for node in _nodes(exported.graph_module):
        if node.target is with_effects and node.args[1] is _LINALG_CHECK:
            _require_no_info(node)
    output = exported.graph_module.graph.output_node()
    specs = exported.graph_signature.output_specs
    kept = [
        value
        for value, spec in zip(output.args[0], specs, strict=True)  # type: ignore[arg-type]
        if spec.kind is not OutputKind.TOKEN
    ]
    output.args = (tuple(kept),)


def _require_no_info(node: Node) -> None:
    """Replace an ordered check of `info`, which must be zero, by one of the program."""
    token, _, info, name = node.args
    graph, aten = node.graph, torch.ops.aten
    text = f"{name}: the matrix is singular or not positive-definite"
    with graph.inserting_before(node), info.meta["val"].fake_mode:  # type: ignore[union-attr]
        fine = graph.call_function(aten.eq.Scalar, (info, 0))
        fine.meta = {**node.meta, "val": aten.eq.Scalar(info.meta["val"], 0)}  # type: ignore[union-attr]
        every = graph.call_function(aten.all.default, (fine,))
        every.meta = {**node.meta, "val": aten.all.default(fine.meta["val"])}
        check = graph.call_function(aten._assert_async.msg, (every, text))
        check.meta = {**node.meta, "val": None}
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(token)  # type: ignore[arg-type]
        graph.erase_node(user)
    graph.erase_node(node)
