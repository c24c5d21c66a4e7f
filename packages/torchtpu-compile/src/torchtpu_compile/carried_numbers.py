# SPDX-License-Identifier: Apache-2.0
"""Numbers that control flow makes, as tensors.

A `while_loop` may carry Python ints, and the branches of a `cond` may give some. Only the
device knows them, so the graph and its subgraphs are rewritten to hold 0-d tensors in their
place: arithmetic on them becomes ops, and ops that take them as numbers become those that take
tensors. What asks for the number itself (a size, a result of the user's) reads it after the
program. A subgraph with another use of one stays as it is, and the host runs its op.

Legend: a number is *open* if control flow makes it; each has a tensor that holds it.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from torchtpu_compile import control_flow
from torchtpu_compile.numbers_as_tensors import ARITHMETIC, OPS, Refused, with_tensors

aten = torch.ops.aten
_NUMBERS = (torch.SymInt, torch.SymBool, int)
#: Those whose results may be numbers.
_MAKERS = frozenset({"while_loop", "cond"})


def make_tensors(module: GraphModule) -> None:
    """Put tensors in the place of the numbers that control flow of a graph makes."""
    if any(_makes_numbers(node) for node in module.graph.nodes):
        Rewriter(module, is_outermost=True).run()


def _makes_numbers(node: Node) -> bool:
    return (
        control_flow.is_control_flow(node)
        and node.target.name() in _MAKERS  # type: ignore[union-attr]
        and any(isinstance(v, _NUMBERS) for v in node.meta.get("val") or ())
        and _device(node) is not None
    )


def _device(node: Node) -> torch.device | None:
    tensor = _example(node)
    return None if tensor is None else tensor.device


def _example(node: Node) -> Any:
    """A tensor of the device among what goes in and out of a node."""
    values = [n.meta.get("val") for n in (*node.all_input_nodes, node)]
    for value in pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return value
    return None


class Rewriter:
    """Writes a graph anew with tensors for its open numbers.

    Args:
        module: the graph.
        opened: which of its inputs are open numbers.
        example: a tensor of the device, as the tracer saw it.
        is_outermost: whether a number may be read from its tensor where it is needed.
    """

    def __init__(
        self,
        module: GraphModule,
        opened: Container[int] = (),
        example: Any = None,
        *,
        is_outermost: bool = False,
    ) -> None:
        self.module = module
        self.opened = opened
        self.example = example
        self.is_outermost = is_outermost
        self.graph = Graph()
        self.copies: dict[Node, Node] = {}
        self.tensors: dict[Node, Node] = {}
        self.made: list[Node] = []

    def run(self) -> GraphModule:
        """The module with its graph in the new form; outermost it is the same module.

        Raises:
            Refused: the graph uses an open number as one; never if it is outermost.
        """
        position = 0
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._copy(node)
                if position in self.opened:
                    self._open_input(node)
                position += 1
            elif node.op == "output":
                self._output(node)
            else:
                self._rewrite(node)
        for node in reversed(self.made):
            if not node.users:
                self.graph.erase_node(node)
        if not self.is_outermost:
            return GraphModule(self.module, self.graph)
        self.module.graph = self.graph
        return self.module

    def _copy(self, node: Node) -> None:
        self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        if node.op == "call_function" and isinstance(node.meta.get("val"), _NUMBERS):
            self.made.append(self.copies[node])

    def _open_input(self, node: Node) -> None:
        self.tensors[node] = self.copies[node]
        with self.example.fake_mode:
            value = torch.empty((), dtype=torch.int64, device=self.example.device)
        self.copies[node].meta = {**node.meta, "val": value}

    def _rewrite(self, node: Node) -> None:
        """One node between the inputs and the outputs."""
        if node in self.tensors:  # came with the node that makes it
            return
        uses = any(source in self.tensors for source in node.all_input_nodes)
        try:
            if _makes_numbers(node) or (uses and control_flow.is_control_flow(node)):
                self._higher_order(node)
                return
            if uses:
                self._use(node)
                if node not in self.tensors:
                    return
        except Refused:
            if not self.is_outermost:
                raise
        if not uses or self.is_outermost:
            self._copy(node)

    def _use(self, node: Node) -> None:
        """A node that takes an open number: arithmetic, or an op."""
        if isinstance(node.meta.get("val"), _NUMBERS):
            arithmetic = ARITHMETIC.get(node.target)  # type: ignore[arg-type]
            if arithmetic is None:
                raise Refused
            self.tensors[node] = arithmetic(self, node)
            return
        written = OPS.get(node.target, with_tensors)(self, node)  # type: ignore[arg-type]
        self.copies[node] = self._like(node, written)

    def _like(self, node: Node, written: Node) -> Node:
        """What stands for a node, in the dtype that the tracer saw."""
        before, after = node.meta.get("val"), written.meta["val"]
        if not isinstance(before, torch.Tensor) or before.ndim != after.ndim:
            raise Refused
        if before.dtype == after.dtype:
            return written
        return self.call(node, aten._to_copy.default, written, dtype=before.dtype)

    def call(self, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add an op at the place of the node that it is for."""
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.example.fake_mode:
            node.meta = {**like.meta, "val": target(*values[0], **values[1])}
        self.made.append(node)
        return node

    def tensor(self, like: Node, value: Any) -> Node:
        """A number of the old graph as a tensor."""
        if isinstance(value, Node) and value in self.tensors:
            return self.tensors[value]
        seen = value.meta.get("val") if isinstance(value, Node) else value
        if not isinstance(seen, _NUMBERS):
            raise Refused
        dtype = torch.bool if isinstance(seen, (bool, torch.SymBool)) else torch.int64
        given = self.copies[value] if isinstance(value, Node) else value
        return self.call(
            like, aten.scalar_tensor.default, given, dtype=dtype, device=self.example.device
        )

    def given(self, value: Any) -> Any:
        """An argument of the old graph in the new one; open numbers as tensors."""
        return torch.fx.node.map_arg(value, lambda n: self.tensors.get(n) or self.copies[n])

    def _output(self, node: Node) -> None:
        if self.is_outermost:
            self._copy(node)
            return
        values = node.args[0]
        listed = values if isinstance(values, (list, tuple)) else (values,)
        results = tuple(
            self.tensor(node, value) if self._is_number(value) else self.given(value)
            for value in listed
        )
        self.graph.output(results)

    def _is_number(self, value: Any) -> bool:
        seen = value.meta.get("val") if isinstance(value, Node) else value
        return isinstance(seen, _NUMBERS)

    def _higher_order(self, node: Node) -> None:
        """Control flow that makes numbers or takes open ones."""
        self.example = self.example if self.example is not None else _example(node)
        results = list(node.meta["val"])
        numbers = [i for i, value in enumerate(results) if isinstance(value, _NUMBERS)]
        name = node.target.name()  # type: ignore[union-attr]
        if numbers and name not in _MAKERS:
            raise Refused
        args = list(node.args)
        if name == "while_loop":
            carried = list(args[2])  # type: ignore[arg-type]
            starts = {i: self._integer(node, carried[i]) for i in numbers}
            args[2] = tuple(starts.get(i, self.given(v)) for i, v in enumerate(carried))
        self._enter(node, args, numbers if name == "while_loop" else ())
        written = self.graph.call_function(node.target, tuple(self._known(args)))  # type: ignore[arg-type]
        for i in numbers:
            with self.example.fake_mode:
                results[i] = torch.empty((), dtype=torch.int64, device=self.example.device)
        written.meta = {**node.meta, "val": tuple(results)}
        self.copies[node] = written
        self._take_numbers_out(node, numbers)

    def _integer(self, node: Node, value: Any) -> Node:
        tensor = self.tensor(node, value)
        if tensor.meta["val"].dtype == torch.int64:
            return tensor
        return self.call(node, aten._to_copy.default, tensor, dtype=torch.int64)

    def _known(self, args: list[Any]) -> Any:
        """Arguments, those that are not yet of the new graph put into it."""
        return torch.fx.node.map_arg(args, lambda n: n if n.graph is self.graph else self.given(n))

    def _enter(self, node: Node, args: list[Any], carried: Container[int]) -> None:
        """Rewrite the subgraphs; puts those into `args`."""
        operands = [
            a
            for a in pytree.tree_leaves(list(node.args))
            if not isinstance(a, str) and not _is_graph(a)
        ]
        opened = {
            i
            for i, a in enumerate(operands[node.target.name() == "cond" :])  # type: ignore[union-attr]
            if i in carried or (isinstance(a, Node) and a in self.tensors)
        }
        for i, argument in enumerate(args):
            if _is_graph(argument):
                inner = Rewriter(control_flow.module_of(argument), opened, self.example).run()
                name = f"{str(argument.target).replace('.', '_')}_{len(self.graph.nodes)}"
                self.module.add_submodule(name, inner)
                args[i] = self.graph.get_attr(name)

    def _take_numbers_out(self, node: Node, numbers: list[int]) -> None:
        """Know the results that are numbers by their tensors, and outermost as numbers."""
        for user in node.users:
            if user.target is not operator.getitem or user.args[1] not in numbers:
                continue
            tensor = self.graph.call_function(operator.getitem, (self.copies[node], user.args[1]))
            tensor.meta = {**user.meta, "val": self.copies[node].meta["val"][user.args[1]]}
            self.made.append(tensor)
            self.tensors[user] = tensor
            if self.is_outermost:
                read = self.graph.call_function(aten._local_scalar_dense.default, (tensor,))
                read.meta = dict(user.meta)
                self.copies[user] = read
                self.made.append(read)


def _is_graph(value: Any) -> bool:
    return (
        isinstance(value, Node)
        and value.op == "get_attr"
        and isinstance(control_flow.module_of(value), GraphModule)
    )
