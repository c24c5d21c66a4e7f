# SPDX-License-Identifier: Apache-2.0
"""One op of a trace as a graph, its sizes open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torchtpu_core.lowering.table import operator
from torchtpu_core.runtime import tables, varying

from torchtpu_compile.decompositions import has_rule, missing_rows
from torchtpu_compile.open_fills import FILLS
from torchtpu_compile.padded import Padded
from torchtpu_compile.placement import is_number
from torchtpu_compile.symbols import Unbounded

#: What returns, after its results, the new values of what the op writes.
_RETURNS_WRITTEN = {"aten::native_batch_norm": "aten::_native_batch_norm_legit_functional"}

#: The value of symbol `i` while the op is traced is ``_HINT + 2 * i``: sizes that differ now
#: and then must not be equal by chance.
_HINT = 1031
#: A chance may be neither 0 nor 1.
_EXAMPLES: Mapping[str, bool | int | float] = {"b": True, "i": 1, "f": 0.5}
#: Of a scalar that stands in for a number in what an op is taken apart into.
_SCALARS = {"i": torch.int64, "f": torch.float64}


class OpGraph:
    """An op, or what PyTorch takes it apart into, traced with symbols for its open sizes.

    Args:
        node: a call of the op.
        operands: fake tensors that it reads.
        numbers: its integer arguments that may vary, numbers or symbols.

    Attributes:
        operands: placeholders of the tensors.
        numbers: placeholders of arguments that are symbols.
        scalars: placeholders, of numbers that come with a call: place, kind and dtype.
        call: of the op; None where it fills what it is given.
        is_whole: the call was not taken apart.
        nodes: what is computed, in order.
        returned: the nodes that are the results, as the op returns them.
        values: the results, fake.

    Raises:
        Unbounded: it has no form for open sizes.
    """

    def __init__(
        self,
        node: Mapping[str, Any],
        operands: Sequence[torch.Tensor],
        numbers: Sequence[int | torch.SymInt],
    ) -> None:
        self.node = node
        self.operands: list[Node] = []
        self.numbers: list[Node] = []
        self.scalars: dict[Node, tuple[int, str, Any]] = {}
        self.call: Node | None = None
        self.is_whole = True
        self.nodes: list[Node] = []
        self.returned: Any = None
        graph = Graph()
        if node["only_out"]:
            if node["name"] not in FILLS:
                raise Unbounded(f"{node['name']} has no rule for padded sizes")
            self.values: list[Any] = list(operands)
            return
        for operand in operands:
            placeholder = graph.placeholder("operand")
            placeholder.meta["val"] = operand
            self.operands.append(placeholder)
        named = self._numbers(graph, numbers)
        args, kwargs, self.scalars = _node_arguments(node, graph, self.operands, named)
        self.call = graph.call_function(operator(_overload(node)), tuple(args), kwargs)
        self.values = results_of(node, self._traced())

    def _traced(self) -> Any:
        """The results as the tracer sees them, of the op if it has a rule, else of its parts."""
        assert self.call is not None
        if not has_rule(self.call.target):
            value = self._take_apart()
            return self._evaluate() if value is None else value
        try:
            return self._evaluate()
        except RuntimeError:  # it has no meta kernel for symbols
            value = self._take_apart()
            if value is None:
                raise
            return value

    def _evaluate(self) -> Any:
        """The results of the call as the tracer sees them."""
        assert self.call is not None
        fake_args, fake_kwargs = torch.fx.node.map_arg(
            (self.call.args, self.call.kwargs), lambda n: n.meta["val"]
        )
        with enable_python_dispatcher():
            self.call.meta["val"] = self.call.target(*fake_args, **fake_kwargs)  # type: ignore[operator]
        self.nodes, self.returned = [self.call], self.call
        return self.call.meta["val"]

    def _take_apart(self) -> Any:
        """The results of the ops that PyTorch takes the call apart into; None: it stays whole."""
        assert self.call is not None
        given = [*self.operands, *self.numbers, *self.scalars]
        if self.node["random"] or not (parts := _taken_apart(self.call, given, self.scalars)):
            return None
        known = dict(zip(given, parts.graph.find_nodes(op="placeholder"), strict=True))
        self.operands, self.numbers = (
            [known[n] for n in of] for of in (self.operands, self.numbers)
        )
        self.scalars = {known[n]: of for n, of in self.scalars.items()}
        self.is_whole = False
        *self.nodes, output = (
            n for n in parts.graph.nodes if n.op != "placeholder" and not is_number(n)
        )
        self.returned = output.args[0]
        return torch.fx.node.map_arg(self.returned, lambda n: n.meta["val"])

    def _numbers(self, graph: Graph, given: Sequence[int | torch.SymInt]) -> dict[str, Any]:
        """The arguments of the op that may vary, by name, with nodes for those that do."""
        rest = iter(given)

        def number(n: int | torch.SymInt) -> int | Node:
            if isinstance(n, int):
                return n
            made = graph.placeholder("number")
            made.meta["val"] = n
            self.numbers.append(made)
            return made

        return {
            name: [number(next(rest)) for _ in values]
            for name, values in varying.numbers_of(self.node)
        }


def new_symbol(env: ShapeEnv, index: int, hint: int | None = None) -> torch.SymInt:
    """The size number `index` of an op, open; `hint` is its value while the op is traced."""
    source = ConstantSource(f"size{index}")
    hint = _HINT + 2 * index if hint is None else hint
    symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=hint, source=source)


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """PyTorch logs as an error what it also raises: here a reason for a program per size."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _node_arguments(
    node: Mapping[str, Any],
    graph: Graph,
    operands: Sequence[Node],
    numbers: Mapping[str, list[int | Node]],
) -> tuple[list[Any], dict[str, Any], dict[Node, tuple[int, str, Any]]]:
    """The op's arguments as nodes; of each scalar's node its place, kind and dtype."""
    scalars: dict[Node, tuple[int, str, Any]] = {}

    def scalar(position: int, kind: str, dtype: Any = None) -> Node:
        made = graph.placeholder("number")
        example = _EXAMPLES[kind]
        made.meta["val"] = example if dtype is None else torch.empty((), dtype=dtype, device="tpu")
        scalars[made] = (position, kind, dtype)
        return made

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, keyword, kind, payload in node["args"]:
        value = payload
        if kind == "tensor":
            value = operands[payload]
        elif kind == "tensors":
            value = [None if i < 0 else operands[i] for i in payload]
        elif kind == "scalar":
            value = scalar(*payload)
        elif kind == "scalars":
            value = [scalar(i, k) for i, k in zip(*payload, strict=True)]
        elif name in numbers:
            listed = isinstance(payload, (list, tuple))
            value = numbers[name] if listed else numbers[name][0]
        if keyword:
            kwargs[name] = value
        else:
            args.append(value)
    return args, kwargs, scalars


def scalar_dtype(kind: str, dtype: torch.dtype | None) -> torch.dtype:
    """Of the tensor that stands for a scalar in what an op is taken apart into."""
    return dtype or _SCALARS[kind]


def _taken_apart(
    call: Node, placeholders: Sequence[Node], scalars: Mapping[Node, tuple[int, str, Any]]
) -> GraphModule | None:
    """The ops that PyTorch takes a call apart into.

    Args:
        call: of an op.
        placeholders: its operands, scalars and numbers.
        scalars: those of them that are scalars; they become tensors of no dimensions.

    Returns:
        A graph of these placeholders, in their order, or None if it does not take the call apart.
    """
    table = missing_rows(tables.current(), open_sizes=True)
    function = table.get(call.target) or decomposition_table.get(call.target)
    if function is None or any(kind not in _SCALARS for _, kind, _ in scalars.values()):
        return None

    def composite(*values: Any) -> Any:
        known = dict(zip(placeholders, values, strict=True))
        args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), known.__getitem__)
        returned = function(*args, **kwargs)
        return tuple(returned) if isinstance(returned, tuple) else returned

    def example(placeholder: Node) -> Any:
        if placeholder not in scalars:
            return placeholder.meta["val"]
        _, kind, dtype = scalars[placeholder]
        return torch.empty((), dtype=scalar_dtype(kind, dtype), device="tpu")

    with enable_python_dispatcher():
        return make_fx(composite, decomposition_table=table)(*map(example, placeholders))


def _overload(node: Mapping[str, Any]) -> str:
    overload: str = node["row"].overload
    return _RETURNS_WRITTEN.get(overload, overload) if node["written"] else overload


def read_inputs(node: Mapping[str, Any]) -> Sequence[Any]:
    """The inputs of a node that it reads as tensors; what it writes into follows them."""
    return [item for item in node["inputs"] if item[2] is not None]


def results_of(node: Mapping[str, Any], returned: Any) -> list[Any]:
    """The tensors among what an op returns, those that the call has, flat."""
    items = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if len(items) == len(node["outs"]):
        kept = [kind in ("tensor", "list") for kind, _ in node["outs"]]
        items = [item for item, keep in zip(items, kept, strict=True) if keep]
    return _tensors(items)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in _tensors(item)]
    return [value] if isinstance(value, (torch.Tensor, Padded)) else []
