# SPDX-License-Identifier: Apache-2.0
"""From the steps of a graph to what runs them: what each is given, and what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.fx import Node
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.table import Lowering

from torchtpu_compile import asserted, numbers
from torchtpu_compile.factory_devices import named_device
from torchtpu_compile.graph_steps import DeviceStep, EagerStep
from torchtpu_compile.placement import (
    Step,
    is_constant,
    is_host_scalar,
    is_input_write,
    is_number,
    is_subgraph,
    tensors_of,
)
from torchtpu_compile.program import Interface, Program
from torchtpu_compile.symbols import expression

if TYPE_CHECKING:
    from torchtpu_compile.executable import Executable

#: CPU constants up to this many elements are compiled into the program.
_INLINE_NUMEL = 1024


class Builder:
    """Turns steps into what runs them; knows who needs which value."""

    def __init__(
        self, owner: Executable, name: str, tables: Mapping[str, Lowering], steps: Sequence[Step]
    ) -> None:
        self.owner = owner
        self.name = name
        self.tables = tables
        self.step_of = {node: step for step in steps for node in step.nodes}
        self.last = steps[-1] if steps else None

    def build(self, step: Step) -> DeviceStep | EagerStep:
        """The runnable form of a step."""
        if step.device is None:
            return EagerStep(step.nodes)
        interface = self._interface(step)
        policy = self.owner.policy
        program = Program(self.name, step.nodes, interface, self.tables, policy())
        return DeviceStep(program, None if interface.tensors else named_device(step.nodes))

    def _interface(self, step: Step) -> Interface:
        inside = set(step.nodes)
        tensors: dict[Node, None] = {}
        scalars: dict[Node, None] = {}
        values: dict[Node, None] = {}
        constants: dict[Node, np.ndarray] = {}
        for source in self._sources(step, inside):
            if source in inside:
                continue
            if is_constant(source):
                self._add_constant(source, step, constants, tensors)
            elif not tensors_of(source):
                values[source] = None
            elif is_host_scalar(source):
                scalars[source] = None
            else:
                tensors[source] = None
        writes = self._writes(step, tensors)
        values.update(dict.fromkeys(self._symbols_of((*tensors, *values))))
        outputs = tuple(n for n in step.nodes if self._leaves(n, step))
        return Interface(
            tensors=tuple(tensors),
            scalars=tuple(scalars),
            numbers=tuple(values),
            constants=constants,
            outputs=outputs if outputs or writes else asserted.conditions(step.nodes),
            writes=writes,
            saved=self.owner.saved,
        )

    def _sources(self, step: Step, inside: set[Node]) -> Iterable[Node]:
        for node in step.nodes:
            for source in node.all_input_nodes:
                yield from self._leaves_of_number(source, inside)

    def _leaves_of_number(self, node: Node, inside: set[Node]) -> Iterable[Node]:
        """What a step must be given for `node`: itself, or what a number is made from."""
        if is_subgraph(node):
            return
        if not is_number(node) or numbers.reads_host(node):
            yield node
        elif numbers.reads_tensor(node) and node.all_input_nodes[0] not in inside:
            yield node.all_input_nodes[0]
        else:
            for source in node.all_input_nodes:
                yield from self._leaves_of_number(source, inside)

    def _symbols_of(self, operands: Iterable[Node]) -> Iterable[Node]:
        """Arguments that tell sizes of which `operands` show products or parts only."""
        values = [n.meta["val"] for n in operands]
        shapes = [v.shape if isinstance(v, torch.Tensor) else (v,) for v in values]
        sizes = [
            expression(s) for shape in shapes for s in shape if not isinstance(s, torch.SymBool)
        ]
        missing = {symbol for size in sizes for symbol in size.free_symbols}.difference(sizes)
        for node in self.owner.inputs:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and expression(value) in missing:
                yield node

    def _add_constant(
        self, node: Node, step: Step, inlined: dict[Node, np.ndarray], operands: dict[Node, None]
    ) -> None:
        value = self.owner.constants[node]
        if value.device.type == "cpu" and value.numel() <= _INLINE_NUMEL:
            inlined[node] = host_array(value)
            return
        if value.device != step.device:
            self.owner.constants[node] = value.to(step.device)
        operands[node] = None

    def _writes(self, step: Step, tensors: dict[Node, None]) -> tuple[tuple[int, Node], ...]:
        found = []
        for node in self.owner.in_program if step is self.last else ():
            target, value = node.args[:2]
            assert isinstance(target, Node) and isinstance(value, Node)
            tensors.setdefault(target)
            found.append((list(tensors).index(target), value))
        return tuple(found)

    def _leaves(self, node: Node, step: Step) -> bool:
        """Whether a value is needed outside its step."""
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        return any(self._needs(user, step) for user in node.users)

    def _needs(self, user: Node, step: Step) -> bool:
        if user.op == "output":
            return True
        if is_number(user):
            return any(self._needs(u, step) for u in user.users)
        if is_input_write(user):
            return user not in self.owner.in_program
        return self.step_of.get(user) is not step


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a NumPy array of the dtype that JAX uses for it."""
    target = dtypes.to_numpy(tensor.dtype)
    plain = tensor.detach().contiguous()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
        carrier = {1: torch.uint8, 2: torch.int16}[tensor.dtype.itemsize]
        return plain.view(carrier).numpy().view(target)
    return plain.numpy()
