# SPDX-License-Identifier: Apache-2.0
"""A graph with open sizes, interpreted at padded sizes.

Every node is lowered by the same rows as at its true size, on arrays that are larger than
the tensors they stand for. What separates ops is who could see the padding: an
elementwise op cannot; a reduction, a contraction, a softmax can, and its rule puts the
identity there first. A rule states which dimensions its result has, and each is compared
with what the tracer saw. A node without a rule may still run if nothing about it is
padded; otherwise the graph is not bounded, with the reason.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.fx import Node
from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.promotion import cast
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering

from torchtpu_compile import control_flow, rng_states, strided
from torchtpu_compile.aligned import elementwise
from torchtpu_compile.bounded_call import Call, Number
from torchtpu_compile.errors import GraphError, describe, require_true, scope_of
from torchtpu_compile.padded import (
    Padded,
    Sizes,
    padded_size,
    true_size,
)
from torchtpu_compile.placement import ASSERTIONS, is_number, is_subgraph
from torchtpu_compile.recomputed import Barriers
from torchtpu_compile.symbols import Unbounded, expression, is_static, same
from torchtpu_compile.true_rng import TrueRng, true_shape


class BoundedInterpreter:
    """Interprets the nodes of a step at padded sizes.

    Args:
        nodes: in order.
        tables: lowering tables.
    """

    def __init__(self, nodes: Sequence[Node], tables: Mapping[str, Lowering]) -> None:
        self.nodes = nodes
        self.barriers = Barriers(nodes)
        self.tables = tables

    def run(self, env: dict[Node, Any], sizes: Sizes, rng: Rng | None) -> None:
        """Add the value of each node to `env`.

        Raises:
            Unbounded: a node's result could depend on padding.
        """
        drawn = 0
        for node in self.nodes:
            self.barriers.hold_back(node, env)
            own = None
            if rng is not None and rng_states.is_random(node, self.tables):
                step = np.uint64(rng_states.RNG_STEP * drawn)
                own = TrueRng.of(Rng(rng.seed, rng.offset + step), sizes, true_shape(node))
                drawn += 1
            env[node] = self.run_node(node, env, sizes, own)

    def run_node(self, node: Node, env: Mapping[Node, Any], sizes: Sizes, rng: Rng | None) -> Any:
        """The value of a node from those of its inputs.

        Raises:
            Unbounded: it could depend on padding.
        """
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda source: _value(source, env, sizes)
        )
        if node.target is operator.getitem:
            return args[0][args[1]]
        call = Call(node, sizes, args, kwargs, self.tables, rng)
        try:
            with checks.collecting() as collected, jax.named_scope(scope_of(node)):
                value = _apply(call)
        except Unbounded:
            raise
        except Exception as error:  # at its true sizes the op works, or says why it does not
            raise Unbounded(f"{GraphError.at_node(node, error)} (at a padded size)") from error
        for condition, (error_type, message, _) in zip(
            collected.conditions, collected.messages, strict=True
        ):
            checks.require(condition, error_type, f"{message}, in {describe(node)}")
        return _checked(call, value, node.meta.get("val"))


def _value(source: Node, env: Mapping[Node, Any], sizes: Sizes) -> Any:
    if is_subgraph(source):
        return source
    if is_number(source) and source not in env:
        value = source.meta["val"]
        if isinstance(value, torch.SymInt):
            return expression(value)
        if isinstance(value, torch.SymFloat):
            return Number(float, sizes.number(expression(value)))
        if isinstance(value, (int, float, bool)):
            return value
        raise Unbounded(f"{source} is a condition on sizes")
    return env[source]


def _apply(call: Call) -> Any:
    from torchtpu_compile.bounded_rules import RULES, higher_order

    target = rng_states.random_op(call.node)
    if target in ASSERTIONS:
        return _asserted(call)
    if control_flow.is_control_flow(call.node):
        return higher_order.lowered(call)
    if not isinstance(target, torch._ops.OpOverload):
        raise Unbounded(f"{describe(call.node)} has no rule for padded sizes")
    if call.node.target is not target:
        raise Unbounded(f"{call.node.target} keeps a random state of its own")
    rule = RULES.get(overload_name(target))
    if rule is not None:
        return rule(call)
    if strided.is_strided(call.node) and not strided.is_plain(call.node):
        raise Unbounded(f"{describe(call.node)} addresses the memory of a view")
    if torch.Tag.pointwise in target.tags:
        return elementwise(call)
    if _touches_padding(call):
        raise Unbounded(f"{describe(call.node)} has no rule for padded sizes")
    return call.run()


def _asserted(call: Call) -> None:
    condition = call.sizes.filled(call.args[0], True).array
    require_true(call.node, condition, *call.args[1:])


def _touches_padding(call: Call) -> bool:
    values = [*call.args, *call.kwargs.values()]
    values += [v for value in values if isinstance(value, (list, tuple)) for v in value]
    if any(isinstance(v, sympy.Expr) and not is_static(v) for v in values):
        return True
    if any(isinstance(v, Padded) and v.padded_dims for v in values):
        return True
    expected = call.node.meta["val"]
    tensors = expected if isinstance(expected, (list, tuple)) else [expected]
    return any(
        not is_static(expression(s))
        for t in tensors
        if isinstance(t, torch.Tensor)
        for s in t.shape
    )


def _checked(call: Call, value: Any, expected: Any) -> Any:
    """`value` with PyTorch's dtype, if its sizes are those the tracer saw."""
    if isinstance(expected, (tuple, list)):
        parts = list(value) if isinstance(value, (tuple, list)) else [value]
        return [_checked(call, v, e) for v, e in zip(parts, expected, strict=False)]
    if value is None or not isinstance(expected, torch.Tensor):
        return value  # None: a gradient that nobody asked for
    if isinstance(value, (tuple, list)):
        value = value[0]
    if not isinstance(value, Padded):
        value = call.sizes.static(value)
    array = cast(value.array, dtypes.to_numpy(expected.dtype))
    exprs = [expression(s) for s in expected.shape]
    shape = tuple(padded_size(d) for d in value.dims)
    if len(exprs) != len(value.dims) or not all(
        same(true_size(d), e) for d, e in zip(value.dims, exprs, strict=True)
    ):
        found = ", ".join(str(true_size(d)) for d in value.dims)
        raise Unbounded(
            f"{describe(call.node)} has sizes ({', '.join(map(str, exprs))}), and its rule for "
            f"padded sizes makes ({found})"
        )
    if array.shape != shape:
        if array.size != 1:
            raise Unbounded(f"{describe(call.node)} has a padded size its rule does not foresee")
        array = jnp.broadcast_to(array.reshape(()), shape)
    return Padded(array, value.dims)
