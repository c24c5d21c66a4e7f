# SPDX-License-Identifier: Apache-2.0
"""A graph ready to run: its programs and the eager calls between them.

Most graphs are one program; the general case keeps values by node and drops each after
its last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.table import Lowering
from torchtpu_core.runtime import clients

from torchtpu_compile import (
    asserted,
    carried_numbers,
    factory_devices,
    flex_attention,
    graph_failures,
    late_waits,
    numbers,
    output_views,
    recomputed,
    rng_states,
    transformed_numbers,
    written_inputs,
)
from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.factory_devices import named_device
from torchtpu_compile.graph_steps import DeviceStep, EagerStep, Values, host_number, number_of
from torchtpu_compile.placement import (
    Placement,
    Step,
    is_constant,
    is_host_scalar,
    is_input_write,
    is_number,
    is_subgraph,
    steps_of,
    tensors_of,
)
from torchtpu_compile.program import Interface, Program
from torchtpu_compile.symbols import expression

#: CPU constants up to this many elements are compiled into the program.
_INLINE_NUMEL = 1024


class Executable:
    """A compiled graph: a list of arguments in, a list of results out.

    Args:
        name: of its programs.
        module: the functional graph.
        tables: the lowering tables.
        policy: makes the policy of padded sizes for a step whose sizes are open.
        aliases: results that share memory in the graph share it for the caller too.

    Attributes:
        steps: what runs, in order.
        programs: the programs among them.
    """

    def __init__(
        self,
        name: str,
        module: GraphModule,
        tables: Mapping[str, Lowering],
        policy: Callable[[], BucketPolicy] = BucketPolicy,
        aliases: bool = False,
    ) -> None:
        carried_numbers.make_tensors(module)
        transformed_numbers.make_tensors(module.graph)
        rng_states.annotate(module)
        factory_devices.annotate(module.graph)
        asserted.own_conditions(module.graph)
        written_inputs.read_first(module.graph)
        flex_attention.expand(module)
        seen = module.meta.get(USER_OUTPUTS)
        self.views = output_views.share(module, seen) if aliases else None
        late_waits.postpone(module.graph)
        self.module = module
        self.policy = policy
        self.placement = Placement(module.graph, tables)
        self.inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.outputs = _flat_outputs(module)
        self.saved = _saved_only(module, self.outputs)
        self._writes = [n for n in module.graph.nodes if is_input_write(n)]
        steps = steps_of(self.placement, _recomputing(module.graph))
        self._in_program = self._writes_of_last(steps)
        self._constants = self._load_constants()
        builder = _Builder(self, name, tables, steps)
        self.steps = [builder.build(step) for step in steps]
        self.programs = [s.program for s in self.steps if isinstance(s, DeviceStep)]
        self._late_writes = [n for n in self._writes if n not in self._in_program]
        self._dead_after = self._last_uses()
        self._direct: Callable[..., list[Any]] | None = None
        self._operands: list[int] | None = None
        self._simple = self._as_one_program()

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Run; empties `arguments`, so that what they held can be freed early."""
        if self._simple is not None:
            return self._simple(arguments)
        values: Values = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        values.update(self._constants)
        with torch.no_grad():
            for step, dead in zip(self.steps, self._dead_after, strict=True):
                step.run(values)
                for node in dead:
                    values.pop(node, None)
            for node in self._late_writes:
                target, value = node.args[:2]
                values[node] = values[target].copy_(number_of(value, values))  # type: ignore[index,arg-type]
        return [number_of(o, values) if isinstance(o, Node) else o for o in self.outputs]

    def entry(self) -> Callable[[list[Any]], list[Any]]:
        """The function to call: the short way if there is one.

        If the whole graph is one native function, its attribute ``direct`` is the form that
        takes the arguments one by one.
        """
        short = graph_failures.telling(self._simple or self, self.programs, self._operands)
        if self.views is not None:
            short = self.views.restoring(short)

        def run(arguments: list[Any]) -> list[Any]:
            return short(arguments)

        # What is compiled is not traced again where a compiled function calls another one;
        # marking the code costs nothing per call.
        torch.compiler.disable(run, recursive=False)
        run.direct = None  # type: ignore[attr-defined]
        if self.views is None and self._direct is not None:
            run.direct = graph_failures.telling(self._direct, self.programs, self._operands)  # type: ignore[attr-defined]
            torch.compiler.disable(run.direct, recursive=False)  # type: ignore[attr-defined]
        return run

    def _writes_of_last(self, steps: Sequence[Step]) -> list[Node]:
        """The writes of inputs that the last step can do as part of its program."""
        if not steps or steps[-1].device is None:
            return []
        last = set(steps[-1].nodes)
        written: list[Node] = []
        for node in self._writes:
            target, value = node.args[:2]
            target_tensor = target.meta["val"]  # type: ignore[union-attr]
            if (
                value in last
                and target_tensor.device == steps[-1].device
                and node not in self.outputs
            ):
                written.append(node)
        return written

    def _last_uses(self) -> list[list[Node]]:
        """For each step, the values that nobody needs after it."""
        last: dict[Node, int] = {}
        for index, step in enumerate(self.steps):
            last.update(dict.fromkeys(step.reads(), index))
            last.update({node: index for node in step.writes() if node not in last})
        kept = {leaf for node in self._ends() for leaf in numbers.leaves(node)}
        dead: list[list[Node]] = [[] for _ in self.steps]
        for node, index in last.items():
            if node not in kept:
                dead[index].append(node)
        return dead

    def _ends(self) -> list[Node]:
        """What is read after the last step."""
        writes = [n for node in self._late_writes for n in node.all_input_nodes]
        return [*writes, *(o for o in self.outputs if isinstance(o, Node))]

    def _load_constants(self) -> Values:
        return {
            node: _attribute(self.module, str(node.target))
            for node in self.module.graph.nodes
            if node.op == "get_attr"
        }

    def _as_one_program(self) -> Callable[[list[Any]], list[Any]] | None:
        """The short way for a graph that is one program with operands from its inputs only."""
        if len(self.steps) != 1 or not self.programs or self._late_writes:
            return None
        program = self.programs[0]
        if self.steps[0] != DeviceStep(program):  # it runs on a device of its own
            return None
        interface = program.interface
        position = {node: i for i, node in enumerate(self.inputs)}
        result = {node: i for i, node in enumerate(interface.outputs)}
        sources = (*interface.tensors, *interface.scalars, *interface.numbers)
        if any(node not in position for node in sources):
            return None
        plan: list[tuple[bool, int | None]] = []
        for output in self.outputs:
            if isinstance(output, Node) and output in result:
                plan.append((True, result[output]))
            elif isinstance(output, Node) and output in position:
                plan.append((False, position[output]))
            elif isinstance(output, Node):
                return None
            else:
                plan.append((False, None))
        operands = [position[node] for node in interface.tensors]
        self._direct = program.bind(operands, plan, boxed=False)
        native = program.bind(operands, plan, boxed=True)
        self._operands = operands if native else None
        return native or _one_program(program, position, plan)


def _one_program(
    program: Program, position: Mapping[Node, int], plan: Sequence[tuple[bool, Any]]
) -> Callable[[list[Any]], list[Any]]:
    tensors, scalars, values = (
        [position[n] for n in nodes]
        for nodes in (
            program.interface.tensors,
            program.interface.scalars,
            program.interface.numbers,
        )
    )

    def run(arguments: list[Any]) -> list[Any]:
        passed = [None if fresh or i is None else arguments[i] for fresh, i in plan]
        operands = [arguments[i] for i in tensors]
        words = [host_number(arguments[i]) for i in scalars]
        sizes = tuple([arguments[i] for i in values])
        arguments.clear()
        results = graph_failures.run(program, operands, words, sizes)
        return [results[i] if fresh else p for (fresh, i), p in zip(plan, passed, strict=True)]

    return run


class _Builder:
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
        value = self.owner._constants[node]
        if value.device.type == "cpu" and value.numel() <= _INLINE_NUMEL:
            inlined[node] = host_array(value)
            return
        if value.device != step.device:
            self.owner._constants[node] = value.to(step.device)
        operands[node] = None

    def _writes(self, step: Step, tensors: dict[Node, None]) -> tuple[tuple[int, Node], ...]:
        found = []
        for node in self.owner._in_program if step is self.last else ():
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
            return user not in self.owner._in_program
        return self.step_of.get(user) is not step


def _recomputing(graph: Graph) -> set[Node]:
    """Where recomputation starts, for a compiler that ignores the barriers of programs."""
    if clients.client().platform != "cpu":
        return set()
    nodes = list(graph.nodes)
    return {nodes[index] for index in recomputed.starts(nodes)}


def _attribute(module: Any, path: str) -> Any:
    return operator.attrgetter(path)(module)


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a NumPy array of the dtype that JAX uses for it."""
    target = dtypes.to_numpy(tensor.dtype)
    plain = tensor.detach().contiguous()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
        carrier = {1: torch.uint8, 2: torch.int16}[tensor.dtype.itemsize]
        return plain.view(carrier).numpy().view(target)
    return plain.numpy()


#: Key in a forward graph's ``meta``: how many of its outputs the user sees; the rest is
#: for the backward graph.
USER_OUTPUTS = "torchtpu_user_outputs"
#: Key in the ``meta`` of a graph from `torch.export`: the `capture.Captured` model.
CAPTURED = "torchtpu_captured"


def _saved_only(module: GraphModule, outputs: Sequence[Any]) -> frozenset[Node]:
    """Outputs that only the backward graph sees."""
    count = module.meta.get(USER_OUTPUTS)
    if count is None:
        return frozenset()
    seen = {n for n in outputs[:count] if isinstance(n, Node)}
    return frozenset(n for n in outputs[count:] if isinstance(n, Node)) - seen


def _flat_outputs(module: GraphModule) -> list[Any]:
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    (values,) = output.args
    return list(values) if isinstance(values, (tuple, list)) else [values]
