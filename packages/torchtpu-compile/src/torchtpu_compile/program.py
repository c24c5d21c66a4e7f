# SPDX-License-Identifier: Apache-2.0
"""One step of a graph as one XLA program.

The nodes are interpreted through the lowering tables inside one function on arrays,
which core records like an op: views, donation, errors, counters and simulated time are
those of eager mode. Sizes come from the operands; numbers that are not sizes of
operands are constants, one specialisation of the function each.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.fx import Node
from torchtpu_core.calls import DeviceCall, OutSpec, device_call
from torchtpu_core.errors import LoweringTableError
from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.interpreter import overload_name, run_overload
from torchtpu_core.lowering.promotion import SCALAR_WORDS, Scalar, cast
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering
from torchtpu_core.runtime import cpu_errors

from torchtpu_compile import control_flow, numbers, rng_states, strided
from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.bounded_program import BoundedProgram, reasons
from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.equal_scalars import EqualScalars, spread
from torchtpu_compile.errors import (
    GraphError,
    describe,
    refuse_dtypes,
    require_true,
    scope_of,
)
from torchtpu_compile.placement import ASSERTIONS, is_subgraph
from torchtpu_compile.recomputed import Barriers
from torchtpu_compile.result_layout import strides_like
from torchtpu_compile.step_key import step_key
from torchtpu_compile.symbols import Unbounded

log = logging.getLogger("torchtpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What goes in and out of a step.

    Attributes:
        tensors: operands on the device.
        scalars: 0-d CPU tensors, passed as run-time scalars.
        numbers: numbers that the nodes need and cannot compute from operands.
        constants: tensors of the graph that are compiled in.
        outputs: nodes whose values leave the step.
        writes: (index in `tensors`, node with the new value) of inputs it replaces.
        saved: outputs that only a backward graph will see.
    """

    tensors: tuple[Node, ...]
    scalars: tuple[Node, ...]
    numbers: tuple[Node, ...]
    constants: Mapping[Node, np.ndarray]
    outputs: tuple[Node, ...]
    writes: tuple[tuple[int, Node], ...]
    saved: frozenset[Node] = frozenset()


class Program:
    """A step of a graph, callable on tensors.

    Args:
        name: shown in logs and profiles.
        nodes: the step's nodes, in order.
        interface: its operands and results.
        tables: the lowering tables.
        policy: the padded sizes if the step's sizes are open; None: true sizes only.
    """

    def __init__(
        self,
        name: str,
        nodes: Sequence[Node],
        interface: Interface,
        tables: Mapping[str, Lowering],
        policy: BucketPolicy | None = None,
    ) -> None:
        refuse_dtypes(nodes)
        self.name = name
        self.nodes = nodes
        self._barriers = Barriers(nodes)
        self.interface = interface
        self.tables = tables
        self.random_ops = sum(rng_states.is_random(node, tables) for node in nodes)
        self._written = [index for index, _ in interface.writes]
        self._static_specs = _static_specs(interface.outputs)
        self._calls: dict[tuple[Any, ...], DeviceCall] = {}
        self.unbounded = ""
        self._equal = EqualScalars([n.meta["val"].dtype for n in interface.scalars])
        self.bounded = self._bounded_form(policy)

    def __call__(
        self,
        tensors: list[torch.Tensor],
        scalars: Sequence[bool | int | float],
        values: tuple[Any, ...],
    ) -> list[torch.Tensor]:
        """Run on the operands that `interface` lists; returns the outputs."""
        if self.bounded is not None:
            try:
                return self.bounded(tensors, scalars, values)
            except Unbounded as error:
                self._give_up_bounds(error)
        specs = self._specs_of(tensors, values)
        operands = self._equal.operands_of(scalars)
        return self._call_for(values)(tensors, operands, self._written, specs)

    def draws(self, node: Node) -> bool:
        """Whether a node is a random op."""
        return rng_states.is_random(node, self.tables)

    def bind(
        self, operands: Sequence[int], returns: Sequence[tuple[bool, int | None]], *, boxed: bool
    ) -> Callable[..., list[Any]] | None:
        """The program as one native function, if all its operands are tensors of fixed sizes.

        Args:
            operands: position of each tensor of `interface` among the arguments.
            returns: what to return, as for `device_call`.
            boxed: take the arguments as a list, and empty it.
        """
        interface = self.interface
        if self._static_specs is None or self.bounded is not None:
            return None
        if interface.scalars or interface.numbers:
            return None
        call = self._call_for(())
        return call.bind(operands, self._written, self._static_specs.copy, returns, boxed)

    def _call_for(self, values: tuple[Any, ...]) -> DeviceCall:
        sharing = self._equal.operands
        call = self._calls.get((values, sharing))
        if call is None:
            call = self._calls[values, sharing] = device_call(
                f"torchtpu::{self.name}",
                spread(self.function(values), sharing),
                random=self.random_ops,
                cache_key=step_key(self.nodes, self.interface, (values, sharing), self.tables),
                alone=True,
            )
        return call

    def _bounded_form(self, policy: BucketPolicy | None) -> BoundedProgram | None:
        if policy is None or not _has_open_sizes(self.interface):
            return None
        interpreter = BoundedInterpreter(self.nodes, self.tables)
        try:
            return BoundedProgram(self.name, self.interface, interpreter, policy, self.random_ops)
        except Unbounded as error:
            self._give_up_bounds(error)
            return None

    def _give_up_bounds(self, error: Unbounded) -> None:
        """From now on one program per combination of sizes; says why, once."""
        self.bounded, self.unbounded = None, str(error)
        reasons[str(error)] += 1
        log.warning(
            "<TorchTpu/dynamic> %s compiles one program per size, because %s.", self.name, error
        )

    def function(self, values: tuple[Any, ...] = ()) -> Callable[..., tuple[jax.Array, ...]]:
        """The step as a function on arrays, for given numbers."""
        return functools.partial(self._interpret, values)

    def _interpret(
        self,
        values: tuple[Any, ...],
        arrays: Sequence[jax.Array],
        *scalars: Scalar,
        rng: Rng | None = None,
    ) -> tuple[jax.Array, ...]:
        interface = self.interface
        env: dict[Node, Any] = dict(zip(interface.tensors, arrays, strict=True))
        for node, scalar in zip(interface.scalars, scalars, strict=True):
            env[node] = scalar.to(dtypes.to_numpy(node.meta["val"].dtype))
        env.update(zip(interface.numbers, values, strict=True))
        env.update({node: jnp.asarray(v) for node, v in interface.constants.items()})
        drawn = 0
        for node in self.nodes:
            self._barriers.hold_back(node, env)
            own = None
            if rng is not None and self.draws(node):
                own = Rng(rng.seed, rng.offset + np.uint64(rng_states.RNG_STEP * drawn))
                drawn += 1
            env[node] = run_node(node, env, self.tables, own)
        written = [_like_operand(env[v], arrays[i]) for i, v in interface.writes]
        return (*(env[node] for node in interface.outputs), *written)

    def _specs_of(
        self, tensors: Sequence[torch.Tensor], values: tuple[Any, ...]
    ) -> Callable[[], list[OutSpec]]:
        if self._static_specs is not None:
            return self._static_specs.copy
        return functools.partial(self._traced_specs, tensors, values)

    def _traced_specs(
        self, tensors: Sequence[torch.Tensor], values: tuple[Any, ...]
    ) -> list[OutSpec]:
        """Specs of the results for sizes that the graph leaves open."""
        operands = [jax.ShapeDtypeStruct(tuple(t.shape), dtypes.to_numpy(t.dtype)) for t in tensors]
        results = self.shapes(operands, values)
        return [
            (list(r.shape), strides_like(node.meta["val"], r.shape), node.meta["val"].dtype)
            for node, r in zip(self.interface.outputs, results, strict=False)
        ]

    def shapes(
        self, operands: Sequence[jax.ShapeDtypeStruct], values: tuple[Any, ...]
    ) -> Sequence[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the results; nothing runs."""
        words = jax.ShapeDtypeStruct((SCALAR_WORDS,), np.uint32)

        def function(arrays: Sequence[jax.Array], *scalar_words: jax.Array) -> Any:
            scalars = [
                Scalar(_kind(node), w)
                for node, w in zip(self.interface.scalars, scalar_words, strict=True)
            ]
            rng = Rng(jnp.uint64(0), jnp.uint64(0)) if self.random_ops else None
            return self._interpret(values, arrays, *scalars, rng=rng)

        with jax.enable_x64(True):
            return jax.eval_shape(function, operands, *[words] * len(self.interface.scalars))


def run_node(
    node: Node, env: Mapping[Node, Any], tables: Mapping[str, Lowering], rng: Rng | None = None
) -> Any:
    """The JAX value of a node from those of its inputs.

    Raises:
        GraphError: the lowering failed; names the op and the user's line.
    """

    def value_of(source: Node) -> Any:
        if is_subgraph(source):
            return control_flow.module_of(source)
        return numbers.evaluate(source, env.__getitem__, env)

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
    if node.target is operator.getitem:
        return args[0][args[1]]
    try:
        with checks.collecting() as collected, jax.named_scope(scope_of(node)):
            if strided.is_strided(node) and not strided.is_plain(node):
                value = strided.lower(node, args, env)
            else:
                value = _run_op(node, args, kwargs, tables, rng)
    except Exception as error:
        raise GraphError.at_node(node, _in_cpus_words(node, args, kwargs, error)) from error
    for condition, (error_type, message, _) in zip(
        collected.conditions, collected.messages, strict=True
    ):
        checks.require(condition, error_type, f"{message}, in {describe(node)}")
    return _conformed(node, value, node.meta.get("val"))


def _run_op(
    node: Node,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tables: Mapping[str, Lowering],
    rng: Rng | None,
) -> Any:
    if node.target in ASSERTIONS:
        return require_true(node, *args)
    if control_flow.is_control_flow(node):
        return control_flow.lower(node, args, lambda n, env: run_node(n, env, tables))
    if node.target is rng_states.SAVES:
        assert rng is not None
        return rng_states.pack(rng), run_overload(args[0], args[1:], kwargs, tables, rng)
    if node.target is rng_states.RESTORES:
        return run_overload(args[1], args[2:], kwargs, tables, rng_states.unpack(args[0]))
    assert isinstance(node.target, torch._ops.OpOverload)
    return run_overload(node.target, args, kwargs, tables, rng)


def _in_cpus_words(node: Node, args: Any, kwargs: Any, error: Exception) -> Exception:
    """What CPU PyTorch says of a call whose lowering failed, if it refuses it too."""
    try:
        if isinstance(node.target, torch._ops.OpOverload):
            cpu_errors.raise_for_arrays(overload_name(node.target), args, kwargs, error)
    except Exception as cpus:
        return cpus
    return error


def _conformed(node: Node, value: Any, expected: Any) -> Any:
    """`value` with the dtype, and if it is known the shape, that PyTorch states."""
    if isinstance(expected, (tuple, list)):
        parts = list(value) if isinstance(value, (tuple, list)) else [value]
        return [_conformed(node, v, e) for v, e in zip(parts, expected, strict=False)]
    if value is None or not isinstance(expected, torch.Tensor):
        return value  # None: a gradient that nobody asked for
    if isinstance(value, (tuple, list)):
        value = value[0]
    value = cast(value, dtypes.to_numpy(expected.dtype))
    if not all(isinstance(s, int) for s in expected.shape):
        return value
    if value.shape == tuple(expected.shape):
        return value
    if value.size == 1:
        return jnp.broadcast_to(value.reshape(()), tuple(expected.shape))
    raise LoweringTableError(
        f"the lowering of {describe(node)} returned shape {value.shape}, but PyTorch says "
        f"{tuple(expected.shape)}. This is a mistake in the lowering table; please report it."
    )


def _like_operand(value: jax.Array, operand: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(value, operand.dtype), operand.shape)


def _kind(node: Node) -> type:
    dtype = node.meta["val"].dtype
    return float if dtype.is_floating_point else (bool if dtype is torch.bool else int)


def _has_open_sizes(interface: Interface) -> bool:
    """Whether a size is left open."""
    for node in (*interface.tensors, *interface.numbers, *interface.outputs):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return True
    return False


def _static_specs(outputs: Sequence[Node]) -> list[OutSpec] | None:
    specs = []
    for node in outputs:
        value = node.meta["val"]
        if not all(isinstance(s, int) for s in (*value.shape, *value.stride())):
            return None
        specs.append((list(value.shape), strides_like(value, value.shape), value.dtype))
    return specs
