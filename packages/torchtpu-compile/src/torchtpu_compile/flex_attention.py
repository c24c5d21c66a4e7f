# SPDX-License-Identifier: Apache-2.0
"""`flex_attention` in compiled graphs, forward and backward.

torch admits only the devices it has kernels for. While Dynamo traces, our reading of its
check lets `tpu` through and asks torch's own about every other device; nothing of torch
is replaced, and called without `torch.compile` the function still refuses `tpu`. In the
graph the op is replaced by its definition, torch's own dense formula with the user's
`score_mod` and `mask_mod` in it, so that XLA sees one program. The scores of all pairs
of positions exist in that program: memory grows with their number.
"""

from __future__ import annotations

import copy
import functools
import operator
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchtpu_compile import control_flow, flex_indices, flex_views
from torchtpu_compile.errors import ASSERTED
from torchtpu_compile.placement import ASSERTIONS

_NAMES = frozenset({"flex_attention", "flex_attention_backward"})
#: Of the backward op: where the derivative of `score_mod` is among the arguments.
_JOINT_GRAPH = 8
#: Its first results are for the score and four positions, the others for what it captured.
_SCORE_ARGUMENTS = 5


@functools.cache
def admit_device() -> None:
    """Let Dynamo trace `flex_attention` on tensors of the device."""
    from torch.nn.attention import flex_attention as module

    original = getattr(module, "_validate_device", None)
    if original is None:  # a torch without the check
        return
    # The same code under another identity: Dynamo would trace `original` as what follows.
    own = types.FunctionType(original.__code__, original.__globals__, original.__name__)

    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "tpu":
            own(query, key, value)

    torch.compiler.substitute_in_graph(original)(validate)


def expand(module: GraphModule) -> None:
    """Put the definition of each flex attention of a graph in its place."""
    found = [node for node in module.graph.nodes if _is_flex(node)]
    for node in found:
        _replace(module, node, _definition(node))
    if found:
        module.graph.eliminate_dead_code(is_impure_node=_has_effect)


def _has_effect(node: Node) -> bool:
    return node.op in ("placeholder", "output") or node.target in ASSERTIONS


def _is_flex(node: Node) -> bool:
    return (
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() in _NAMES
        and any(t.device.type == "tpu" for t in _operands(node))
    )


def _operands(node: Node) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _definition(node: Node) -> GraphModule:
    """A graph of ATen ops that takes the node's operands, in order of first use."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torchtpu_core.runtime import tables

    from torchtpu_compile.decompositions import missing_rows

    forward = node.target.name() == "flex_attention"  # type: ignore[union-attr]
    wanted = () if forward else _gradients_of_buffers(node)
    formula = node.target.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]  # type: ignore[union-attr]
    sources = [n for n in node.all_input_nodes if not _is_module(n)]

    def function(*values: Any) -> Any:
        known = dict(zip(sources, values, strict=True))
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs),
            lambda n: _of_batches(control_flow.module_of(n)) if _is_module(n) else known[n],
        )
        if not forward:
            args = (*args[:-2], _wanting_gradients(args[-2], wanted), args[-1])
        with torch.no_grad():
            if forward:
                flex_indices.require_legal(*args, **kwargs)
            return formula(*args, **kwargs)

    example = [n.meta["val"] for n in sources]
    mode = next(t.fake_mode for t in _operands(node) if hasattr(t, "fake_mode"))
    forms = {**missing_rows(tables.current()), **flex_indices.decompositions()}
    with mode:
        made = make_fx(function, decomposition_table=forms)(*example)
    flex_indices.uncheck(made.graph)
    flex_views.make_views(made.graph, mode)
    return made


def _of_batches(module: GraphModule) -> GraphModule:
    """A function of one pair of positions, of operators that `torch.vmap` has rules for.

    It would call any other once for each pair.
    """
    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        if node.target is torch.ops.prims.convert_element_type.default:
            node.target = torch.ops.aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
    return GraphModule(module, graph)


def _gradients_of_buffers(node: Node) -> Sequence[Any]:
    """What the derivative of `score_mod` gives for each buffer that it captured; None: nothing.

    What the tracer noted of the backward op has a gradient for each, learned or not.
    """
    joint = control_flow.module_of(node.args[_JOINT_GRAPH])  # type: ignore[arg-type]
    output = next(n for n in reversed(joint.graph.nodes) if n.op == "output")
    return output.args[0][_SCORE_ARGUMENTS:]  # type: ignore[index,return-value]


def _wanting_gradients(buffers: Sequence[Any], wanted: Sequence[Any]) -> tuple[Any, ...]:
    """What `score_mod` captured; the formula gives gradients of what requires them."""
    return tuple(
        buffer if gradient is None else buffer.detach().requires_grad_()
        for buffer, gradient in zip(buffers, wanted, strict=True)
    )


def _is_module(node: Node) -> bool:
    return node.op == "get_attr" and isinstance(control_flow.module_of(node), GraphModule)


def _replace(module: GraphModule, node: Node, definition: GraphModule) -> None:
    graph = module.graph
    sources = [n for n in node.all_input_nodes if not _is_module(n)]
    values: dict[Node, Node] = {}
    inputs = iter(sources)
    with graph.inserting_before(node):
        for inner in definition.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(inputs)
            elif inner.op == "output":
                _hand_out(node, torch.fx.node.map_arg(inner.args[0], values.__getitem__))
            else:
                values[inner] = _copied(module, inner, values, node)
    graph.erase_node(node)


def _copied(module: GraphModule, inner: Node, values: dict[Node, Node], place: Node) -> Node:
    made = module.graph.node_copy(inner, values.__getitem__)
    if made.target is torch.ops.aten.copy_.default:  # into a new tensor that nobody reads
        made.target = torch.ops.aten._to_copy.default
        made.args, made.kwargs = (made.args[1],), {"dtype": made.meta["val"].dtype}
    elif made.target is torch.ops.aten._to_copy.default and not isinstance(made.args[0], Node):
        tensor = made.meta["val"]  # a number that vmap took for a tensor
        made.target = torch.ops.aten.scalar_tensor.default
        made.kwargs = {"dtype": tensor.dtype, "device": tensor.device}
    elif made.target in ASSERTIONS:
        made.meta[ASSERTED] = IndexError
    if inner.op == "get_attr":
        made.target = f"_{place.name}_{inner.target}"
        constant = control_flow.module_of(inner)
        setattr(module, made.target, constant)
        made.meta.setdefault("val", constant)
    if "stack_trace" in place.meta:
        made.meta["stack_trace"] = place.meta["stack_trace"]
    return made


def _hand_out(node: Node, value: Any) -> None:
    """Give the users of an op with several results what they take from it."""
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise NotImplementedError(f"{user} takes all results of {node} at once")
        part = value[user.args[1]]
        if isinstance(part, Node):
            user.replace_all_uses_with(part)
        elif user.users:
            _hand_out(user, part)
        user.graph.erase_node(user)
