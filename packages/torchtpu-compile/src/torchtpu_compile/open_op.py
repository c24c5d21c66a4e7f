# SPDX-License-Identifier: Apache-2.0
"""One op whose operands have open sizes, as a program for each of a few padded sizes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torchtpu_core.lowering import checks, dtypes, mxu, storage_views
from torchtpu_core.lowering.interpreter import run_row
from torchtpu_core.lowering.promotion import SCALAR_WORDS, cast
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.lowering.table import operator
from torchtpu_core.runtime import clients, compiling, tables, varying
from torchtpu_core.runtime.trace_lowering import Check, Description, arguments
from torchtpu_core.runtime.trace_words import Words

from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.decompositions import has_rule
from torchtpu_compile.errors import describe
from torchtpu_compile.inductor_ops import RNG_STEP
from torchtpu_compile.op_graph import (
    new_symbol,
    node_arguments,
    scalar_dtype,
    taken_apart,
    without_reports,
)
from torchtpu_compile.padded import Padded, Sizes, padded_size
from torchtpu_compile.placement import is_number
from torchtpu_compile.symbols import Unbounded, evaluate, expression

#: Per operand the sizes of the tensor, and those under which its storage is kept, then the numbers
#: of the op, if any; symbol `i` is ``-1 - i``.
Pattern: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

#: Ops that fill what they are given, whose result begins as a longer one does.
_FILLS = frozenset({"aten::arange.start_out"})

#: What returns, after its results, the new values of what the op writes.
_RETURNS_WRITTEN = {"aten::native_batch_norm": "aten::_native_batch_norm_legit_functional"}


class FormError(Unbounded):
    """Why one call of an op of open sizes is not like the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """The op compiled for padded sizes.

    Attributes:
        compiled: operands, true sizes and scalar words to results, flags of checks last.
        checks: what it reports.
        operands: padded sizes of each operand.
        new_bytes: memory of a run besides its operands.
    """

    compiled: compiling.Compiled
    checks: list[Check]
    operands: list[tuple[int, ...]]
    new_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How calls of an op find their operands.

    Attributes:
        node: of the first such call.
        device: the device's index.
        reads: of each operand, whether the program reads the tensor from its storage's value;
            else the operand is the tensor, padded.
    """

    node: Mapping[str, Any]
    device: int
    reads: tuple[bool, ...]


class OpenOp:
    """An op at padded sizes.

    Args:
        description: a call of it, a trace of one op.
        pattern: its open sizes.

    Raises:
        Unbounded: it has no form for open sizes.
    """

    def __init__(self, description: Description, pattern: Pattern) -> None:
        (self.node,) = description["nodes"]
        self.scalar_count: int = description["scalar_count"]
        self.pattern = pattern
        self.lock = threading.RLock()
        self.policy = BucketPolicy()
        self._executables: dict[Any, Executable] = {}
        self._ways: dict[Any, Way] = {}
        self._trace()

    def _trace(self) -> None:
        """The op as a graph of one node, with symbols for its open sizes."""
        env = ShapeEnv()
        lowest = min((n for pair in self.pattern for part in pair for n in part), default=0)
        symbols = [new_symbol(env, i) for i in range(max(-lowest, 0))]
        self.symbols = [symbol.node.expr for symbol in symbols]
        graph = Graph()
        self.operands: list[Node] = []
        self.numbers: list[Node] = []
        self.scalars: dict[Node, tuple[int, str, Any]] = {}
        self.call: Node | None = None
        self.is_whole = True  # not taken apart
        self.nodes: list[Node] = []
        self.returned: Any = None
        if self.node["only_out"]:
            if self.node["name"] not in _FILLS:
                raise Unbounded(f"{self.node['name']} has no rule for padded sizes")
            self.guards = []
            ((sizes, _),) = self.pattern
            self.results = [[expression(n if n >= 0 else symbols[-1 - n]) for n in sizes]]
            return
        with FakeTensorMode(shape_env=env):
            for (_, _, view, _), (sizes, _) in zip(
                read_inputs(self.node), self.pattern, strict=False
            ):
                placeholder = graph.placeholder("operand")
                shape = [n if n >= 0 else symbols[-1 - n] for n in sizes]
                placeholder.meta["val"] = torch.empty(shape, dtype=view[2], device="tpu")
                self.operands.append(placeholder)
            numbers = self._numbers(graph, symbols)
            args, kwargs, self.scalars = node_arguments(self.node, graph, self.operands, numbers)
            target = operator(_overload(self.node))
            self.call = graph.call_function(target, tuple(args), kwargs)
            with without_reports():
                value = self._traced(target)
        self.guards = [guard.expr for guard in env.guards]
        self.results = [[expression(s) for s in t.shape] for t in _results(self.node, value)]

    def _traced(self, target: Any) -> Any:
        """The results as the tracer sees them, of the op if it has a rule, else of its parts."""
        if not has_rule(target):
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
        if self.node["random"] or not (parts := taken_apart(self.call, given, self.scalars)):
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

    def _numbers(self, graph: Graph, symbols: Sequence[torch.SymInt]) -> dict[str, Any]:
        """The arguments of the op that may vary, by name, with nodes for those that do."""
        numbers: dict[str, Any] = {}
        given = iter(self.pattern[-1][0])

        def number(n: int) -> int | Node:
            if n >= 0:
                return n
            made = graph.placeholder("number")
            made.meta["val"] = symbols[-1 - n]
            self.numbers.append(made)
            return made

        for name, values in varying.numbers_of(self.node):
            numbers[name] = [number(next(given)) for _ in values]
        return numbers

    @functools.cached_property
    def shaping(self) -> tuple[bool, ...]:
        """Of each symbol, whether it is part of a size; the other ones are numbers only."""
        operands = [expression(s) for node in self.operands for s in node.meta["val"].shape]
        exprs = [*operands, *(e for of_one in self.results for e in of_one)]
        used = {symbol for e in exprs for symbol in e.free_symbols}
        return tuple(symbol in used for symbol in self.symbols)

    def _filled(
        self, node: Mapping[str, Any], words: Words, scalars: range, sizes: Sizes
    ) -> jax.Array:
        ((_, _, dtype),) = node["written"]
        args, kwargs = arguments(node, [], words, scalars)
        shape = [sizes.padded(e) for e in self.results[0]]
        kwargs["out"] = jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype))
        return cast(run_row(node["row"], args, kwargs, tables.current()), kwargs["out"].dtype)

    def require(self, description: Description, true: Sequence[int]) -> None:
        """Refuse a call whose results would not have the sizes that the trace foresees.

        Raises:
            FormError: so.
        """
        known = dict(zip(self.symbols, true, strict=True))
        (node,) = description["nodes"]
        specs = [tuple(spec[0]) for _, specs in node["outs"] for spec in specs]
        specs += [tuple(spec[0]) for spec in node["written"]]
        found = [tuple(evaluate(e, known) for e in exprs) for exprs in self.results]
        if found != specs or any(g.xreplace(known) != sympy.true for g in self.guards):
            raise FormError("it does not keep its form at some sizes")

    def way(self, description: Description, reads: Sequence[bool]) -> Way:
        """The way of a call, the same object for calls that share it.

        Args:
            description: the call.
            reads: of each operand, as in `Way`.
        """
        (node,) = description["nodes"]
        read = [i[1:] if r else None for i, r in zip(read_inputs(node), reads, strict=True)]
        key = description["device"], tuple(read)
        with self.lock:
            return self._ways.setdefault(key, Way(node, description["device"], tuple(reads)))

    def executable(self, way: Way, padded: Sequence[int]) -> Executable:
        """The op compiled for padded sizes.

        Args:
            way: of the call.
            padded: of each symbol.

        Raises:
            Unbounded: the op could see padding, or fails at these sizes.
        """
        key = id(way), tuple(padded)
        with self.lock:
            if key not in self._executables:
                self._executables[key] = self._compile(way.node, way.device, padded, way.reads)
            return self._executables[key]

    @property
    def count(self) -> int:
        """How many programs there are."""
        return len(self._executables)

    def _compile(
        self, node: Mapping[str, Any], device: int, padded: Sequence[int], reads: Sequence[bool]
    ) -> Executable:
        known = dict(zip(self.symbols, map(int, padded), strict=True))
        sizes = Sizes(known, {})
        exprs = [[expression(s) for s in operand.meta["val"].shape] for operand in self.operands]
        shapes = [tuple(sizes.padded(e) for e in of_one) for of_one in exprs]
        placement = clients.sharding(device)

        def struct(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype), sharding=placement)

        avals = [
            struct(base[0], dtypes.to_numpy(base[2]))
            if read
            else struct(shape, dtypes.to_numpy(view[2]))
            for shape, read, (place, base, view, _) in zip(
                shapes, reads, read_inputs(node), strict=True
            )
            if place is not None
        ]
        avals.append(struct((len(known),), np.int32))
        if self.scalar_count:
            avals.append(struct((self.scalar_count * SCALAR_WORDS,), np.uint32))
        found: list[Check] = []
        bytes_: list[int] = []

        def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            with checks.collecting() as collected, mxu.using(node["precision"]):
                results = self._interpret(node, known, exprs, reads, arrays)
            found[:] = [
                (error, _own_words(text, self.call), 0) for error, text, _ in collected.messages
            ]
            bytes_[:] = [r.size * r.dtype.itemsize for r in results]
            flags = [checks.failed(collected.conditions)] if collected.conditions else []
            return (*results, *flags)

        name = f"{node['name'].split('::')[-1]}_open"
        compiled = compiling.compile_function(function, avals, [], name)
        return Executable(
            compiled=compiled,
            checks=found,
            operands=shapes,
            new_bytes=sum(bytes_) + compiled.temporary_bytes,
        )

    def _interpret(
        self,
        node: Mapping[str, Any],
        padded: Mapping[sympy.Symbol, int],
        exprs: Sequence[Sequence[sympy.Expr]],
        reads: Sequence[bool],
        arrays: Sequence[jax.Array],
    ) -> list[jax.Array]:
        given = iter(arrays)
        words = Words(arrays[-1] if self.scalar_count else None)
        true = arrays[-2 if self.scalar_count else -1].astype(np.int64)
        sizes = Sizes(padded, {s: true[i] for i, s in enumerate(self.symbols)})
        env: dict[Node, Any] = {}
        for (place, base, view, plan), read, operand, of_one in zip(
            read_inputs(node), reads, self.operands, exprs, strict=True
        ):
            dims = tuple(sizes.dim(e) for e in of_one)
            if place is None:  # as programs of true sizes have what was never written
                shape = [padded_size(dim) for dim in dims]
                array = jnp.zeros(shape, dtypes.to_numpy(view[2]))
            else:
                array = next(given)
            if read and place is not None:
                starts = words.starts(plan)
                array = storage_views.read(
                    array, Geometry(*base), Geometry(*view), Plan(*plan), starts
                )
            else:
                words.take(plan[-1])
            env[operand] = Padded(array, dims)
        for *_, plan in node["inputs"][len(self.operands) :]:
            words.take(plan[-1])
        for _, _, _, plan, _ in node["outputs"]:
            words.take(plan[-1])
        scalars = words.take(node["scalars"])
        if self.call is None:
            return [self._filled(node, words, scalars, sizes)]
        for placeholder, (position, kind, dtype) in self.scalars.items():
            scalar = words.scalar(scalars[position], kind, dtype)
            of_part = dtypes.to_numpy(scalar_dtype(kind, dtype))
            env[placeholder] = scalar if self.is_whole else Padded(scalar.to(of_part), ())
        env.update({number: expression(number.meta["val"]) for number in self.numbers})
        rng = words.rng(scalars) if node["random"] else None
        interpreter = BoundedInterpreter(self.nodes, tables.current(), lambda _: 1, RNG_STEP)
        interpreter.run(env, sizes, rng)
        value = torch.fx.node.map_arg(self.returned, env.__getitem__)
        specs = [spec for _, specs in node["outs"] for spec in specs] + list(node["written"])
        return [
            cast(sizes.compact(v).array, dtypes.to_numpy(dtype))
            for v, (_, _, dtype) in zip(_results(node, value), specs, strict=True)
        ]


def _overload(node: Mapping[str, Any]) -> str:
    overload: str = node["row"].overload
    return _RETURNS_WRITTEN.get(overload, overload) if node["written"] else overload


def read_inputs(node: Mapping[str, Any]) -> Sequence[Any]:
    """The inputs of a node that it reads as tensors; what it writes into follows them."""
    return [item for item in node["inputs"] if item[2] is not None]


def _results(node: Mapping[str, Any], returned: Any) -> list[Any]:
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


def _own_words(message: str, call: Node | None) -> str:
    """A check's message as a program of true sizes has it."""
    return message if call is None else message.removesuffix(f", in {describe(call)}")
