# SPDX-License-Identifier: Apache-2.0
"""The default backend, Inductor, on tensors of the device: its graphs become our programs.

Inductor asks a registry who handles a device. For `tpu` we register a graph pass, which
takes over the whole graph and leaves one custom op in its place; a scheduling that has
nothing to schedule; and a wrapper whose code calls our executable directly. Nothing else
of Inductor changes: graphs of other devices never get here. What Inductor's own
decompositions bring into a graph has rows in `inductor_ops`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from torchtpu_compile import apart, optimizer_steps, written_inputs

#: Graphs by the number in the op that stands for them.
_modules: dict[int, GraphModule] = {}
#: The executable of each that runs.
_graphs: dict[int, Callable[[list[Any]], list[Any]]] = {}
#: The results of each, as the tracer saw them.
_results: dict[int, list[torch.Tensor]] = {}
_numbers = itertools.count()


def register(registry: ModuleType) -> None:
    """Register the device in Inductor's registry of devices."""
    registry.register_backend_for_device(
        "tpu", _Scheduling, _Wrapper, _CppWrapper, _Wrapper, device_custom_pass=_graph_pass()
    )


def graph_call(number: int) -> Callable[[list[Any]], list[Any]]:
    """The executable of a graph; what the generated module calls."""
    from torchtpu_compile.backend import compile_graph

    if number not in _graphs:
        module = _modules.pop(number)
        aliases = _part(module.graph) != "backward"
        _graphs[number] = compile_graph("inductor", module, (), aliases=aliases)
    return _graphs[number]


def _part(graph: Graph) -> str:
    """What AOTAutograd made a graph for, by the names it gives its inputs."""
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    if any(name.startswith("tangents") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals") for name in names) else "inference"


def _graph_pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphModulePass

    class TakeOver(CustomGraphModulePass):  # type: ignore[misc]
        """Replaces a graph by one op."""

        def __call__(self, gm: GraphModule) -> None:
            _take_over(gm)

        def uuid(self) -> str:
            return "torchtpu_compile.inductor"

    return TakeOver()


def _take_over(module: GraphModule) -> None:
    """Keep a graph and put one node in its place; inputs and outputs stay.

    Inductor hands over the subgraphs of a graph first; they go back into their graph.
    """
    count = _user_outputs(module.graph)
    if count is not None:
        written_inputs.save_values(module, count)
    _put_op(module, _keep(module))


def _keep(module: GraphModule) -> int:
    """Keep a copy of a graph for `graph_call`; its number."""
    from torchtpu_compile.executable import USER_OUTPUTS
    from torchtpu_compile.inductor_ops import undo_lowering_patterns

    optimizer_steps.give_back(module)
    number = next(_numbers)
    for inner in module.modules():
        if inner is not module and isinstance(inner, GraphModule):
            _give_back(inner)
    graph = Graph()
    output = graph.output(graph.graph_copy(module.graph, {}))
    output.meta = dict(module.graph.output_node().meta)
    undo_lowering_patterns(graph)
    copied = GraphModule(module, graph)
    apart.take_apart(copied)
    count = _user_outputs(graph)
    if count is not None:
        copied.meta[USER_OUTPUTS] = count
    _modules[number] = copied
    return number


def _user_outputs(graph: Graph) -> int | None:
    """How many results of a forward graph the user sees; None: there is no backward graph."""
    context = torch._guards.TracingContext.try_get()
    if _part(graph) != "forward" or context is None or context.fw_metadata is None:
        return None
    return int(context.fw_metadata.num_forward)


def _give_back(module: GraphModule) -> None:
    """Put the graph that was taken over back into a subgraph."""
    for node in module.graph.nodes:
        if node.target is _op():
            module.graph = _modules.pop(node.args[0]).graph
            module.recompile()
            return


def _put_op(module: GraphModule, number: int) -> None:
    graph = module.graph
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    tensors = [
        n
        for n in graph.nodes
        if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    computed = [
        n
        for n in output.all_input_nodes
        if n.op != "placeholder" and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    _results[number] = [n.meta["val"] for n in computed]
    with graph.inserting_before(output):
        call = graph.call_function(_op(), (number, tensors))
        call.meta["val"] = list(_results[number])
        for index, node in enumerate(computed):
            item = graph.call_function(operator.getitem, (call, index))
            # Inductor would look for sizes that a value tells in code of its own.
            item.meta = {k: v for k, v in node.meta.items() if k != "unbacked_bindings"}
            output.replace_input_with(node, item)
    # A size computed from an intermediate result would keep that result's op alive.
    output.args = torch.fx.node.map_arg(
        output.args, lambda n: n if n.op == "placeholder" or n.target is operator.getitem else 0
    )
    # The op stays where it has no results: a graph may do nothing but write its inputs.
    graph.eliminate_dead_code(
        is_impure_node=lambda n: n.op in ("placeholder", "output") or n is call
    )
    module.recompile()


@functools.cache
def _op() -> Any:
    """The op that stands for a graph within Inductor; it never runs."""
    from torch._inductor import lowering

    @torch.library.custom_op("torchtpu_inductor::graph", mutates_args=())
    def graph(number: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return graph_call(number)(list(tensors))

    @graph.register_fake
    def _(number: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for t in _results[number]
        ]

    overload = torch.ops.torchtpu_inductor.graph.default
    # Declared, because users may forbid the fallbacks that Inductor would make by itself.
    lowering.make_fallback(overload, warn=False)
    return overload


class _Scheduling:
    """Stands where Inductor expects the class of a device's scheduling."""

    def __new__(cls, scheduler: Any) -> Any:
        """The scheduling of one graph."""
        return _scheduling_class()(scheduler)


@functools.cache
def _scheduling_class() -> type:
    from torch._inductor.scheduler import BaseScheduling

    class Scheduling(BaseScheduling):  # type: ignore[misc]
        """Schedules nothing: a graph is one call."""

        def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
            return False

        def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
            return False

        def group_fn(self, sizes: Any) -> Any:
            return tuple(tuple(size) for size in sizes)

        def codegen_node(self, node: Any) -> None:
            """Nothing: the wrapper's code is one call."""

        def codegen_sync(self) -> None:
            """Nothing: the wrapper's code is one call."""

        def flush(self) -> None:
            """Nothing is held back."""

    return Scheduling


class _Wrapper:
    """Stands where Inductor expects the class that writes its Python module."""

    supports_caching = False
    base = "torch._inductor.codegen.wrapper.PythonWrapperCodegen"

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """The writer of one graph's module.

        Raises:
            GraphError: Inductor is to write a library in C++.
        """
        from torch._inductor.virtualized import V

        from torchtpu_compile.errors import GraphError

        if V.graph.aot_mode:
            raise GraphError(
                "AOTInductor writes C++, and programs for tpu are XLA's. Use "
                "torch_tpu.compile.aot(model, args) and torch_tpu.compile.load(path) instead."
            )
        return _wrapper_class(cls.base)()


class _CppWrapper(_Wrapper):
    """The same with the option ``cpp_wrapper``; Inductor then asks for another base class."""

    base = "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu"


@functools.cache
def _wrapper_class(base: str) -> Any:
    from torch._inductor.utils import ValueWithLineMap
    from torch._inductor.virtualized import V

    class Wrapper(pkgutil.resolve_name(base)):  # type: ignore[misc]
        """Writes a module whose ``call`` is the graph's executable."""

        @staticmethod
        def create(*args: Any, **kwargs: Any) -> Any:
            return Wrapper()

        def generate_fallback_kernel(self, node: Any) -> None:
            """Nothing: the wrapper's code is one call."""

        def generate_fallback_kernel_with_runtime_lookup(self, *args: Any) -> None:
            """Nothing: the wrapper's code is one call."""

        def generate(self, is_inference: bool) -> tuple[Any, Any]:
            module = V.graph.module
            taken = [n.args[0] for n in module.graph.nodes if n.target is _op()]
            number = taken[0] if taken else _keep(module)  # mode "lite" runs no graph passes
            code = (
                f"from torchtpu_compile.inductor import graph_call\n\ncall = graph_call({number})\n"
            )
            return ValueWithLineMap(code, []), ValueWithLineMap("", [])

    return Wrapper
