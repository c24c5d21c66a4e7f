# SPDX-License-Identifier: Apache-2.0
"""A graph ready to run: its programs and the eager calls between them.

Most graphs are one program; the general case keeps values by node and drops each after
its last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
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
from torchtpu_compile.graph_steps import DeviceStep, Values, host_number, number_of
from torchtpu_compile.placement import (
    Placement,
    Step,
    is_input_write,
    steps_of,
)
from torchtpu_compile.program import Program
from torchtpu_compile.step_builder import Builder


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
        constants: tensors of the graph by node, where their step wants them.
        in_program: writes of inputs that the last step's program does.
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
        self.in_program = self._writes_of_last(steps)
        self.constants = self._load_constants()
        builder = Builder(self, name, tables, steps)
        self.steps = [builder.build(step) for step in steps]
        self.programs = [s.program for s in self.steps if isinstance(s, DeviceStep)]
        self._late_writes = [n for n in self._writes if n not in self.in_program]
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
        values.update(self.constants)
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


def _recomputing(graph: Graph) -> set[Node]:
    """Where recomputation starts, for a compiler that ignores the barriers of programs."""
    if clients.client().platform != "cpu":
        return set()
    nodes = list(graph.nodes)
    return {nodes[index] for index in recomputed.starts(nodes)}


def _attribute(module: Any, path: str) -> Any:
    return operator.attrgetter(path)(module)


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
