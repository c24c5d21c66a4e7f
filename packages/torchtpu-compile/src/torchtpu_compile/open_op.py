# SPDX-License-Identifier: Apache-2.0
"""One op whose operands have open sizes, as a program for each of a few padded sizes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.fx import Node
from torchtpu_core.lowering import checks, dtypes, mxu, storage_views
from torchtpu_core.lowering.interpreter import run_row
from torchtpu_core.lowering.promotion import SCALAR_WORDS, cast
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import clients, compiling, tables
from torchtpu_core.runtime.trace_lowering import Check, Description, arguments
from torchtpu_core.runtime.trace_words import Words

from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.errors import describe
from torchtpu_compile.inductor_ops import RNG_STEP
from torchtpu_compile.op_graph import OpGraph, Pattern, read_inputs, results_of, scalar_dtype
from torchtpu_compile.padded import Padded, Sizes, padded_size
from torchtpu_compile.symbols import expression


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
        (node,) = description["nodes"]
        self.graph = OpGraph(node, pattern)
        self.scalar_count: int = description["scalar_count"]
        self.lock = threading.RLock()
        self.policy = BucketPolicy()
        self._executables: dict[Any, Executable] = {}
        self._ways: dict[Any, Way] = {}

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
        known = dict(zip(self.graph.symbols, map(int, padded), strict=True))
        sizes = Sizes(known, {})
        shapes = [tuple(sizes.padded(e) for e in of_one) for of_one in self.graph.operand_sizes]
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
                results = self._interpret(node, known, reads, arrays)
            found[:] = [
                (error, _own_words(text, self.graph.call), 0)
                for error, text, _ in collected.messages
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
        reads: Sequence[bool],
        arrays: Sequence[jax.Array],
    ) -> list[jax.Array]:
        words = Words(arrays[-1] if self.scalar_count else None)
        true = arrays[-2 if self.scalar_count else -1].astype(np.int64)
        sizes = Sizes(padded, {s: true[i] for i, s in enumerate(self.graph.symbols)})
        operands = self._operands(node, sizes, words, reads, arrays)
        for *_, plan in node["inputs"][len(self.graph.operands) :]:
            words.take(plan[-1])
        for _, _, _, plan, _ in node["outputs"]:
            words.take(plan[-1])
        scalars = words.take(node["scalars"])
        if self.graph.call is None:
            return [self._filled(node, words, scalars, sizes)]
        value = self._computed(operands, sizes, words, scalars)
        specs = [spec for _, specs in node["outs"] for spec in specs] + list(node["written"])
        return [
            cast(sizes.compact(v).array, dtypes.to_numpy(dtype))
            for v, (_, _, dtype) in zip(results_of(node, value), specs, strict=True)
        ]

    def _operands(
        self,
        node: Mapping[str, Any],
        sizes: Sizes,
        words: Words,
        reads: Sequence[bool],
        arrays: Sequence[jax.Array],
    ) -> dict[Node, Any]:
        """The tensors that a call reads, by placeholder."""
        given = iter(arrays)
        found: dict[Node, Any] = {}
        for (place, base, view, plan), read, operand, exprs in zip(
            read_inputs(node), reads, self.graph.operands, self.graph.operand_sizes, strict=True
        ):
            dims = tuple(sizes.dim(e) for e in exprs)
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
            found[operand] = Padded(array, dims)
        return found

    def _computed(self, env: dict[Node, Any], sizes: Sizes, words: Words, scalars: range) -> Any:
        """What the op returns, from `env` of its operands."""
        graph = self.graph
        for placeholder, (position, kind, dtype) in graph.scalars.items():
            scalar = words.scalar(scalars[position], kind, dtype)
            of_part = dtypes.to_numpy(scalar_dtype(kind, dtype))
            env[placeholder] = scalar if graph.is_whole else Padded(scalar.to(of_part), ())
        env.update({number: expression(number.meta["val"]) for number in graph.numbers})
        rng = words.rng(scalars) if graph.node["random"] else None
        interpreter = BoundedInterpreter(graph.nodes, tables.current(), lambda _: 1, RNG_STEP)
        interpreter.run(env, sizes, rng)
        return torch.fx.node.map_arg(graph.returned, env.__getitem__)

    def _filled(
        self, node: Mapping[str, Any], words: Words, scalars: range, sizes: Sizes
    ) -> jax.Array:
        ((_, _, dtype),) = node["written"]
        args, kwargs = arguments(node, [], words, scalars)
        shape = [sizes.padded(e) for e in self.graph.results[0]]
        kwargs["out"] = jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype))
        return cast(run_row(node["row"], args, kwargs, tables.current()), kwargs["out"].dtype)


def _own_words(message: str, call: Node | None) -> str:
    """A check's message as a program of true sizes has it."""
    return message if call is None else message.removesuffix(f", in {describe(call)}")
