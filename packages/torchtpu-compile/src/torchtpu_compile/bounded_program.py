# SPDX-License-Identifier: Apache-2.0
"""A step of a graph with open sizes as few programs: operands padded, results cut back.

A result is a view of a padded tensor, so cutting costs nothing, and the next graph that
takes it finds the padding in place. Any other operand is padded through host memory, and
an input of open size is written through it: a program that pads or cuts would be one
more program for each size.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.fx import Node
from torchtpu_core.calls import OutSpec, device_call
from torchtpu_core.env_values import LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import SCALAR_WORDS, Scalar
from torchtpu_core.lowering.rng import Rng

from torchtpu_compile import numbers, value_bytes
from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.guard_equations import largest_that_holds
from torchtpu_compile.padded import Padded, Sizes
from torchtpu_compile.result_layout import Layout, dense_strides
from torchtpu_compile.size_sources import sources_of, true_sizes
from torchtpu_compile.symbols import Unbounded, expression, is_static

log = logging.getLogger("torchtpu")

#: Why graphs with open sizes run at their true sizes, and how many do.
reasons: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class Variant:
    """The step for one combination of padded sizes.

    Attributes:
        function: takes the operand arrays, then the step's scalars and the true sizes as
            scalars; with random ops also ``rng``.
        operands: shapes and dtypes of the operands.
        specs: of the results.
        scalars: how many scalars the function takes.
        padded: the padded size of each symbol.
    """

    function: Callable[..., tuple[jax.Array, ...]]
    operands: list[jax.ShapeDtypeStruct]
    specs: list[OutSpec]
    scalars: int
    padded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One program.

    Attributes:
        call: the recorded call.
        operands: padded sizes of each operand, None where nothing is padded.
        specs: of the results.
    """

    call: Callable[..., list[torch.Tensor]]
    operands: tuple[tuple[int, ...] | None, ...]
    specs: list[OutSpec]


class BoundedProgram:
    """The bounded form of a step.

    Args:
        name: of its programs.
        interface: operands and results, as for a program of true sizes.
        interpreter: of the step's nodes.
        policy: chooses the padded sizes.
        random_ops: how many random ops the step stands for.

    Attributes:
        symbols: the step's, in the order in which their values are passed.
        layouts: of the results of open size, None of the others.
        last: the padded size of each symbol in the last run.

    Raises:
        Unbounded: the step's operands do not tell its sizes.
    """

    def __init__(
        self,
        name: str,
        interface: Any,
        interpreter: BoundedInterpreter,
        policy: BucketPolicy,
        random_ops: int,
    ) -> None:
        self.name = name
        self.interface = interface
        self.interpreter = interpreter
        self.policy = policy
        self.random_ops = random_ops
        self._shapes = [_exprs(n) for n in interface.tensors]
        self.layouts = [_layout(n, interface) for n in interface.outputs]
        self._sources = sources_of(_symbols(interface), interface, self._shapes)
        self.symbols = [source.symbol for source in self._sources]
        nodes = (*interface.tensors, *interpreter.nodes)
        policy.bytes_at = value_bytes.of_nodes(nodes, self.symbols)
        self.last: dict[sympy.Symbol, int] = {}
        self._upper = tuple(_upper(s, interface) for s in self.symbols)
        self._entries: dict[tuple[int, ...], _Entry] = {}
        is_open = [not all(map(is_static, exprs)) for exprs in self._shapes]
        self._written = [(i, node) for i, node in interface.writes if not is_open[i]]
        #: Inputs of open size that get new values; those are results first.
        self._late = [(i, node) for i, node in interface.writes if is_open[i]]
        self._results = (*interface.outputs, *(node for _, node in self._late))
        late = [Layout.of(_exprs(n), dense_strides(_exprs(n))) for _, n in self._late]
        self.layouts += late

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[bool | int | float],
        values: tuple[Any, ...],
    ) -> list[torch.Tensor]:
        """Run at true sizes taken from the operands.

        Raises:
            Unbounded: the step cannot run at padded sizes.
        """
        known = true_sizes(self._sources, tensors, values)
        true = tuple(known.values())
        padded = self.policy.padded(true, self._upper)
        self.last = dict(zip(self.symbols, padded, strict=True))
        entry = self._entries.get(padded)
        if entry is None:
            entry = self._entries[padded] = self._build(padded)
        # What the copies are made of is not the user's to see, in a mode or a subclass.
        with torch._C._DisableTorchDispatch():
            operands = [
                t if sizes is None else with_padding(t, sizes)
                for t, sizes in zip(tensors, entry.operands, strict=True)
            ]
        written = [index for index, _ in self._written]
        # Lowering what is met for the first time makes fake tensors, which want their mode.
        results = entry.call(operands, [*scalars, *true], written, entry.specs.copy)
        with torch._C._DisableTorchDispatch():
            cut = [
                result if layout is None else layout.cut(result, known)
                for result, layout in zip(results, self.layouts, strict=True)
            ]
            late = cut[len(self.interface.outputs) :]
            for (index, _), value in zip(self._late, late, strict=True):
                # Through host memory, as operands come: a copy on the device is a program per size.
                tensors[index].copy_(value.cpu())
        return cut[: len(self.interface.outputs)]

    @property
    def program_count(self) -> int:
        """How many programs there are."""
        return len(self._entries)

    def _build(self, padded: tuple[int, ...]) -> _Entry:
        known = dict(zip(self.symbols, padded, strict=True))
        variant = self.at(known)
        if LogTopic.RECOMPILES in settings().log:
            log.warning("<TorchTpu/recompiles> %s for sizes up to %s", self.name, known)
        open_shapes = tuple(
            None if all(map(is_static, exprs)) else struct.shape
            for exprs, struct in zip(self._shapes, variant.operands, strict=True)
        )
        call = device_call(
            f"torchtpu::{self.name}", variant.function, random=self.random_ops, alone=True
        )
        return _Entry(call, open_shapes, variant.specs)

    def at(self, known: Mapping[sympy.Symbol, int]) -> Variant:
        """The step at given padded sizes of its symbols.

        Raises:
            Unbounded: the step cannot run at padded sizes.
        """
        sizes = Sizes(known, {})
        shapes = [tuple(sizes.padded(e) for e in exprs) for exprs in self._shapes]
        structs = [
            jax.ShapeDtypeStruct(shape, dtypes.to_numpy(node.meta["val"].dtype))
            for shape, node in zip(shapes, self.interface.tensors, strict=True)
        ]
        function = self._function(known)
        results = self._shapes_of(function, structs)
        specs: list[OutSpec] = [
            (list(r.shape), list(numbers.contiguous(r.shape)), n.meta["val"].dtype)
            for r, n in zip(results, self._results, strict=False)
        ]
        scalars = len(self.interface.scalars) + len(self.symbols)
        return Variant(function, structs, specs, scalars, tuple(known.values()))

    def _function(self, padded: Mapping[sympy.Symbol, int]) -> Callable[..., tuple[jax.Array, ...]]:
        interface = self.interface

        def function(
            arrays: Sequence[jax.Array], *scalars: Scalar, rng: Rng | None = None
        ) -> tuple[jax.Array, ...]:
            given = len(interface.scalars)
            true = [s.to(np.dtype(np.int64)) for s in scalars[given:]]
            sizes = Sizes(padded, dict(zip(self.symbols, true, strict=True)))
            env: dict[Node, Any] = {}
            for node, array, exprs in zip(interface.tensors, arrays, self._shapes, strict=True):
                env[node] = Padded(array, tuple(sizes.dim(e) for e in exprs))
            for node, scalar in zip(interface.scalars, scalars[:given], strict=True):
                dtype = dtypes.to_numpy(node.meta["val"].dtype)
                env[node] = Padded(scalar.to(dtype), ())
            for node, constant in interface.constants.items():
                env[node] = sizes.static(jnp.asarray(constant))
            for node in interface.numbers:
                env[node] = _number(node)
            self.interpreter.run(env, sizes, rng)
            outputs = [
                env[node].array if layout is None else layout.laid_out(sizes, env[node])
                for node, layout in zip(self._results, self.layouts, strict=True)
            ]
            written = [
                jnp.broadcast_to(env[v].array.astype(arrays[i].dtype), arrays[i].shape)
                for i, v in self._written
            ]
            return (*outputs, *written)

        return function

    def _shapes_of(self, function: Any, structs: Sequence[jax.ShapeDtypeStruct]) -> Any:
        """Shapes of the results; also the proof that every op can run at padded sizes."""
        words = jax.ShapeDtypeStruct((SCALAR_WORDS,), np.uint32)
        kinds = [_kind(n) for n in self.interface.scalars] + [int] * len(self.symbols)

        def traced(arrays: Sequence[jax.Array], *words_: jax.Array) -> Any:
            scalars = [Scalar(kind, w) for kind, w in zip(kinds, words_, strict=True)]
            rng = Rng(jnp.uint64(0), jnp.uint64(0)) if self.random_ops else None
            if rng is None:
                return function(arrays, *scalars)
            return function(arrays, *scalars, rng=rng)

        with jax.enable_x64(True):
            return jax.eval_shape(traced, list(structs), *[words] * len(kinds))


def with_padding(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """A tensor of `sizes` whose front part is `tensor`: the one it is a view of, or a copy."""
    strides = list(numbers.contiguous(sizes))
    storage_bytes = tensor.untyped_storage().nbytes()
    numel = int(np.prod(sizes, dtype=np.int64))
    alone = storage_bytes == numel * tensor.itemsize  # a part of a larger one: another program
    if alone and tuple(tensor.shape) == sizes and tensor.is_contiguous():
        return tensor
    if (
        list(tensor.stride()) == strides
        and tensor.storage_offset() == 0
        and alone
        and all(t <= p for t, p in zip(tensor.shape, sizes, strict=True))
    ):
        return tensor.detach().as_strided(sizes, strides)
    room = torch.zeros(sizes, dtype=tensor.dtype)
    room[tuple(slice(0, n) for n in tensor.shape)] = tensor.detach().cpu()
    return room.to(tensor.device)


def _exprs(node: Node) -> list[sympy.Expr]:
    return [expression(s) for s in node.meta["val"].shape]


def _layout(node: Node, interface: Any) -> Layout | None:
    exprs = _exprs(node)
    if all(map(is_static, exprs)):
        return None
    if node in interface.saved:
        return Layout.with_padding(exprs)
    return Layout.of(exprs, [expression(s) for s in node.meta["val"].stride()])


def _symbols(interface: Any) -> set[sympy.Symbol]:
    found: set[sympy.Symbol] = set()
    for node in (*interface.tensors, *interface.outputs):
        for expr in _exprs(node):
            found |= expr.free_symbols
    for node in interface.numbers:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            found |= value.node.expr.free_symbols
        elif not isinstance(value, int):
            raise Unbounded(f"{node} is a number that is not a size")
    return found


def _upper(symbol: sympy.Symbol, interface: Any) -> int | None:
    """The largest value of a symbol that is declared, or that the guards allow."""
    for node in (*interface.tensors, *interface.numbers):
        value = node.meta["val"]
        sizes = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt) and symbol in size.node.expr.free_symbols:
                upper = size.node.shape_env.var_to_range[symbol].upper
                held = largest_that_holds(symbol, size.node.shape_env)
                if upper.is_Integer and upper < 2**40:
                    return int(upper) if held is None else min(int(upper), held)
                return held
    return None


def _number(node: Node) -> Any:
    value = node.meta["val"]
    return expression(value) if isinstance(value, torch.SymInt) else value


def _kind(node: Node) -> type:
    dtype = node.meta["val"].dtype
    return float if dtype.is_floating_point else (bool if dtype is torch.bool else int)
