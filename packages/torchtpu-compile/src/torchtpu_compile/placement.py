# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a graph run on the device, and in which order of steps.

A graph becomes as few programs as its data flow allows. What cannot be part of a
program (a host fallback, a result whose shape depends on data, a copy between
devices, an op of CPU tensors) runs as an ordinary eager call between programs, so any
graph that runs eagerly also runs compiled. Numbers (SymInt arithmetic) belong to no
step: whoever needs one computes it.

Legend: a node's *group* is what runs it, a device or ``None`` for eager calls; a
*step* is a run of nodes of one group.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.masks import needs_mask_expansion
from torchtpu_core.lowering.table import Kind, Lowering
from torchtpu_core.runtime import host_only

from torchtpu_compile import control_flow, rng_states

Tables = Mapping[str, Lowering]

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
_IN_PROGRAM = (Kind.NATIVE, Kind.DECOMPOSITION)
#: Impure by name, but with no effect on any tensor: they may run whenever.
_FREE_ASSERTIONS = frozenset(
    {
        "aten::_assert_scalar",
        "aten::_assert_tensor_metadata",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)


#: Whose operators call collectives.
_COLLECTIVE = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}
)

#: What checks a tensor: the program reports it as it reports an index out of range.
ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


@dataclass(slots=True)
class Step:
    """Nodes that run together.

    Attributes:
        device: where they run as one program; None: eager calls, one by one.
        nodes: in graph order.
    """

    device: torch.device | None
    nodes: list[Node] = field(default_factory=list)


def values_of(node: Node) -> list[Any]:
    """The results of a node as the tracer saw them, flat."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, (tuple, list)) else [value]


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The tensors among a node's results."""
    return [v for v in values_of(node) if isinstance(v, torch.Tensor)]


def is_number(node: Node) -> bool:
    """Whether a node is arithmetic on sizes, computed by whoever needs it."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), _NUMBERS):
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten" and target._schema.name.startswith("aten::sym_")
    return True


def is_constant(node: Node) -> bool:
    """Whether a node is a tensor that the graph itself holds."""
    return node.op == "get_attr" and bool(tensors_of(node))


def is_subgraph(node: Node) -> bool:
    """Whether a node is a graph within the graph, of a higher-order op."""
    return node.op == "get_attr" and isinstance(control_flow.module_of(node), GraphModule)


def is_input_write(node: Node) -> bool:
    """Whether a node gives a mutated input its new value."""
    return (
        node.target is torch.ops.aten.copy_.default
        and isinstance(node.args[0], Node)
        and node.args[0].op == "placeholder"
    )


def viewed(node: Node) -> Node | None:
    """The tensor that a node is a view of."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
        return None
    if node.target is torch.ops.aten._unsafe_view.default:  # hides from autograd what it is
        return node.args[0] if isinstance(node.args[0], Node) else None
    returns = node.target._schema.returns
    if not returns or returns[0].alias_info is None or returns[0].alias_info.is_write:
        return None
    return node.args[0] if isinstance(node.args[0], Node) else None


def _is_view_of_input(node: Node) -> bool:
    source = viewed(node)
    return source is not None and (source.op == "placeholder" or _is_view_of_input(source))


def _shows_untold_place(node: Node) -> bool:
    """Whether a result lies, through this view, where no size of the inputs but a value tells.

    AOTAutograd makes such a view of an input anew by the geometry of the result, so it has to be
    the view itself (``x[k.item()]``).
    """
    for user in node.users:
        if user.op == "output" and any(map(free_unbacked_symbols, tensors_of(node))):
            return True
        is_part = user.target is operator.getitem  # of what ``x.split([k, n - k])`` returns
        if (is_part or viewed(user) is node) and _shows_untold_place(user):
            return True
    return False


def _tells_its_place(node: Node) -> bool:
    """Whether nothing but this view itself tells its size or its place: ``x[k.item():]``."""
    return viewed(node) is not None and bool(node.meta.get("unbacked_bindings"))


class Placement:
    """Assigns each node of a graph to a group.

    Attributes:
        device: the one tpu device of the graph, or None if it has none or several.
        groups: the group of each placed node.
    """

    def __init__(self, graph: Graph, tables: Tables) -> None:
        self.tables = tables
        self.graph = graph
        self.device = _only_device(graph)
        self.groups: dict[Node, torch.device | None] = {}
        self._small: set[Node] = set()
        self._assign()

    def _assign(self) -> None:
        """Place all nodes; CPU values that somebody on the host needs are made there."""
        on_host: set[Node] = set()
        while True:
            self.groups.clear()
            self._small.clear()
            for node in self.graph.nodes:
                if node.op == "call_function" and not is_number(node):
                    self.groups[node] = self._group(node, on_host)
            needed = {n for n in self._small if self._needed_on_host(n)} - on_host
            if not needed:
                return
            on_host |= needed

    def _needed_on_host(self, node: Node) -> bool:
        """Whether somebody on the host takes a result of this node, itself or out of a list."""
        return any(
            user.op == "output"
            or (user in self.groups and self.groups[user] is None)
            or (user.target is operator.getitem and self._needed_on_host(user))
            for user in node.users
        )

    def _group(self, node: Node, on_host: set[Node]) -> torch.device | None:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, Node)
            if source in self._small:
                self._small.add(node)
            return self.groups.get(source)
        if node.target in ASSERTIONS:
            return self._group_of_assertion(node)
        if _tells_its_place(node) or (_is_view_of_input(node) and _shows_untold_place(node)):
            return None
        if not self._has_row(node):
            return None
        devices = {t.device for t in tensors_of(node)}
        if not devices or not all(t.layout is torch.strided for t in tensors_of(node)):
            return None
        if devices == {torch.device("cpu")}:
            if self.device is None or node in on_host or not self._is_small(node):
                return None
            self._small.add(node)
            return self.device
        if len(devices) > 1:
            return None
        device = devices.pop()
        if device.type != "tpu" or not all(self._readable(i, device) for i in _inputs(node)):
            return None
        return device

    def _group_of_assertion(self, node: Node) -> torch.device | None:
        source = node.args[0]
        assert isinstance(source, Node)
        (tensor,) = tensors_of(source)
        inside = tensor.device.type == "tpu" and self._readable(source, tensor.device)
        return tensor.device if inside else None

    def _has_row(self, node: Node) -> bool:
        if control_flow.is_control_flow(node):
            return control_flow.fits(node, self.tables)
        target = rng_states.random_op(node)
        if not isinstance(target, torch._ops.OpOverload):
            return False
        name = overload_name(target)
        row = self.tables.get(name)
        if row is None or row.kind not in _IN_PROGRAM or target._schema.is_mutable:
            return False
        if row.true_sizes and _has_open_sizes(node):
            return False
        operands = [source.meta.get("val") for source in _inputs(node)]
        return not _counts_a_mask(name, node) and not host_only.is_host_only(name, operands)

    def _is_small(self, node: Node) -> bool:
        """Whether a CPU node may be computed in the program: from constants or numbers only."""
        scalar = all(t.ndim == 0 for t in tensors_of(node))
        for source in _inputs(node):
            if not tensors_of(source) or source in self._small or is_constant(source):
                continue
            if not (scalar and is_host_scalar(source)):
                return False
        return torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]

    def _readable(self, source: Node, device: torch.device) -> bool:
        """Whether a program on `device` can take `source` as an operand or make it itself."""
        return all(
            t.device == device
            or source in self._small
            or is_constant(source)
            or is_host_scalar(source)
            for t in tensors_of(source)
        )


def is_host_scalar(node: Node) -> bool:
    """Whether a node is a 0-d CPU tensor of a type that a run-time scalar can carry."""
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.ndim == 0
        and not value.dtype.is_complex
    )


def _counts_a_mask(name: str, node: Node) -> bool:
    """Whether the size of an indexed result is the number of true elements of a mask."""
    if not name.startswith("aten::index") or not isinstance(node.args[1], (list, tuple)):
        return False
    indices = [i.meta["val"] if isinstance(i, Node) else None for i in node.args[1]]
    return needs_mask_expansion(name, indices)


def _has_open_sizes(node: Node) -> bool:
    """Whether a size of an operand or a result is left open."""
    tensors = [t for n in (node, *_inputs(node)) for t in tensors_of(n)]
    return any(isinstance(size, torch.SymInt) for t in tensors for size in t.shape)


def _inputs(node: Node) -> Iterable[Node]:
    return [n for n in node.all_input_nodes if not is_number(n)]


def _only_device(graph: Graph) -> torch.device | None:
    found = {t.device for node in graph.nodes for t in tensors_of(node) if t.device.type == "tpu"}
    return found.pop() if len(found) == 1 else None


def steps_of(placement: Placement, starts: Container[Node] = ()) -> list[Step]:
    """The steps of a graph, in an order that respects data flow and effects.

    A node starts a new step only where it needs a result of another group; what the host can do
    at once comes before the first program. Collectives keep the order that the user gave them:
    other ranks, whose data flow may differ by an operator, call them in that order too. What comes
    behind one runs behind it, while it is under way. Writes of inputs are left to the caller, who
    does them last.

    Args:
        placement: of the graph's nodes.
        starts: nodes before which all that comes before them is to be over.
    """
    stage: dict[Node, int] = {}
    steps: dict[tuple[int, torch.device | None], Step] = {}
    floor = 0
    for node in placement.graph.nodes:
        if node not in placement.groups or is_input_write(node):
            continue
        group = placement.groups[node]
        if node in starts:
            floor = max(stage.values(), default=0)
        number = floor + (group is not None)
        for source in dependencies(node):
            if source in stage:
                number = max(number, stage[source] + (placement.groups[source] != group))
        if is_collective(node):
            floor = number = max(number, floor)
        if is_barrier(node):
            number = max([number, *(n + 1 for n in stage.values())])
            floor = number + 1
        stage[node] = number
        steps.setdefault((number, group), Step(group)).nodes.append(node)
    return [steps[key] for key in sorted(steps, key=lambda k: (k[0], str(k[1])))]


def dependencies(node: Node) -> Iterator[Node]:
    """The placed nodes a node needs, through any arithmetic on numbers."""
    for source in node.all_input_nodes:
        if is_number(source):
            yield from dependencies(source)
        else:
            yield source


def is_barrier(node: Node) -> bool:
    """Whether a node has effects, so that it keeps its place among all others."""
    target = node.target
    if target in ASSERTIONS:
        return False
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable or (
            node.is_impure(impure_random=False) and target._schema.name not in _FREE_ASSERTIONS
        )
    return node.is_impure(impure_random=False)


def is_collective(node: Node) -> bool:
    """Whether other ranks call the same; a wait for one is not one."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in _COLLECTIVE
        and not is_wait(node)
    )


def is_wait(node: Node) -> bool:
    """Whether the host waits for a collective."""
    target = node.target
    is_op = isinstance(target, torch._ops.OpOverload)
    return is_op and target._schema.name == "_c10d_functional::wait_tensor"  # type: ignore[union-attr]
