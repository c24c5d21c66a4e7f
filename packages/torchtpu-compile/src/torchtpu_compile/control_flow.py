# SPDX-License-Identifier: Apache-2.0
"""Higher-order ops inside a program: `cond`, `while_loop`, `scan` and their like.

Each becomes the control flow of XLA, with its subgraphs interpreted by the same rows as
the graph around it. A subgraph that a program cannot hold (host fallbacks, random ops,
sizes that depend on data, writes) leaves its op to be run as PyTorch does, with a read by
the host. Sizes among the operands are bound to a subgraph before it is traced.

Legend: a *flag* says whether a check of a subgraph held; checks cannot leave a loop on
their own, so each subgraph returns its flags beside its results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torchtpu_core.lowering import checks
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Kind, Lowering

#: Lowers one node of a subgraph: node, values of the nodes before it.
RunNode = Callable[[Node, Mapping[Node, Any]], Any]
Tables = Mapping[str, Lowering]


class Subgraph:
    """A graph within a graph as a function on arrays.

    Args:
        module: the graph.
        run_node: lowers one node.

    Attributes:
        messages: (error, text, node) of each flag; known once it was called.
    """

    def __init__(self, module: GraphModule, run_node: RunNode) -> None:
        self.module = module
        self.run_node = run_node
        self.messages: list[tuple[type[Exception], str, int]] = []
        self.inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.bound: dict[Node, Any] = {}

    def bind(self, last: Sequence[Any]) -> None:
        """Fix those of the last operands that are no arrays."""
        for node, value in zip(self.inputs[len(self.inputs) - len(last) :], last, strict=True):
            if not isinstance(value, jax.Array):
                self.bound[node] = value

    def enter(self, node: Node, value: Any) -> Any:
        """What an operand is within the graph."""
        return value

    def leave(self, node: Node, value: Any) -> Any:
        """What a result is outside of the graph."""
        return value

    def __call__(self, *arguments: jax.Array) -> tuple[tuple[Any, ...], tuple[jax.Array, ...]]:
        """Results, and the flags of the checks."""
        given = [n for n in self.inputs if n not in self.bound]
        env = {n: self.enter(n, v) for n, v in zip(given, arguments, strict=True)} | self.bound
        results: tuple[Any, ...] = ()
        with checks.collecting() as collected:
            for node in self.module.graph.nodes:
                if node.op == "call_function" and not _is_number(node):
                    env[node] = self.run_node(node, env)
                elif node.op == "output":
                    results = tuple(
                        self.leave(v, env[v]) if isinstance(v, Node) else v
                        for v in _listed(node.args[0])
                    )
        self.messages = list(collected.messages)
        return results, _all(collected.conditions)

    def flag_count(self, *arguments: jax.Array) -> int:
        """How many flags it returns for such arguments."""
        return len(jax.eval_shape(self, *arguments)[1])

    def require(self, flags: Sequence[jax.Array]) -> None:
        """Hand flags on to whoever builds the program."""
        for flag, (error, message, _) in zip(flags, self.messages, strict=True):
            checks.require(flag, error, message)


def _is_number(node: Node) -> bool:
    """Whether a node is arithmetic on sizes; who needs it computes it."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int))


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else (values,)


def _all(flags: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(jnp.all(flag) for flag in flags)


def _cond(pred: Any, true: Subgraph, false: Subgraph, operands: Sequence[Any]) -> Any:
    counts = true.flag_count(*operands), false.flag_count(*operands)

    def branch(taken: Subgraph, before: int, after: int) -> Callable[..., Any]:
        def run(*arguments: jax.Array) -> Any:
            results, flags = taken(*arguments)
            held = jnp.ones((), bool)
            return tuple(results), (*[held] * before, *flags, *[held] * after)

        return run

    chosen = jnp.reshape(jnp.asarray(pred), ()).astype(bool)
    branches = branch(true, 0, counts[1]), branch(false, counts[0], 0)
    results, flags = lax.cond(chosen, *branches, *operands)
    true.require(flags[: counts[0]])
    false.require(flags[counts[0] :])
    return results


def _while_loop(
    condition: Subgraph, body: Subgraph, carried: Sequence[Any], additional: Sequence[Any]
) -> Any:
    carried = tuple(jnp.asarray(x) for x in carried)
    counts = [graph.flag_count(*carried, *additional) for graph in (condition, body)]

    def goes_on(state: Any) -> jax.Array:
        (result,), _ = condition(*state[0], *additional)
        return jnp.reshape(result, ()).astype(bool)

    def step(state: Any) -> Any:
        values, flags = body(*state[0], *additional)
        if counts[0]:
            flags = (*condition(*state[0], *additional)[1], *flags)
        same = tuple(jnp.asarray(v, x.dtype) for v, x in zip(values, state[0], strict=True))
        return same, tuple(a & b for a, b in zip(state[1], _all(flags), strict=True))

    held = tuple(jnp.ones((), bool) for _ in range(sum(counts)))
    results, flags = lax.while_loop(goes_on, step, (carried, held))
    condition.require(flags[: counts[0]])
    body.require(flags[counts[0] :])
    return results


def _scan(
    combine: Subgraph,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional: Sequence[Any],
    *,
    count: jax.Array | None = None,
) -> Any:
    """The first `count` rows (all) make the carried values."""

    def step(state: Any, row: Any) -> Any:
        index, carry = state
        results, flags = combine(*carry, *row, *additional)
        kept, out = results[: len(init)], results[len(init) :]
        same = tuple(jnp.asarray(v, x.dtype) for v, x in zip(kept, carry, strict=True))
        if count is not None:
            is_row = index < count
            same = tuple(jnp.where(is_row, v, x) for v, x in zip(same, carry, strict=True))
            flags = tuple(flag | ~is_row for flag in flags)
        return (index + 1, same), (tuple(out), flags)

    start = jnp.zeros((), np.int64)
    (_, carry), (outs, flags) = lax.scan(step, (start, tuple(init)), tuple(xs))
    combine.require(flags)
    return (*carry, *outs)


def _associative_scan(combine: Subgraph, xs: Sequence[Any], additional: Sequence[Any]) -> Any:
    rows = [x[0] for x in xs]
    held = jnp.ones(xs[0].shape[0], bool)
    count = combine.flag_count(*rows, *rows, *additional)

    def pair(left: Any, right: Any) -> Any:
        results, flags = combine(*left[0], *right[0], *additional)
        both = tuple(a & b & c for a, b, c in zip(left[1], right[1], _all(flags), strict=True))
        return tuple(results), both

    results, flags = lax.associative_scan(jax.vmap(pair), (tuple(xs), (held,) * count), axis=0)
    combine.require(flags)
    return results


def _map(function: Subgraph, xs: Sequence[Any], additional: Sequence[Any]) -> Any:
    results, flags = lax.map(lambda row: function(*row, *additional), tuple(xs))
    function.require(flags)
    return results


def _call(function: Subgraph, identifier: str, *operands: Any) -> Any:
    results, flags = function(*operands)
    function.require(flags)
    return results


#: Name of a higher-order op to its lowering; subgraphs arrive as `Subgraph`.
_LOWERINGS: Mapping[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "map_impl": _map,
    "invoke_subgraph": _call,
}


def is_control_flow(node: Node) -> bool:
    """Whether a node is a higher-order op that has a lowering."""
    return (
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() in _LOWERINGS
        and not node.kwargs
    )


def lower(node: Node, args: Sequence[Any], run_node: RunNode) -> Any:
    """The results of a higher-order op; `args` hold arrays and the subgraphs' modules."""
    wrapped = [Subgraph(a, run_node) if isinstance(a, GraphModule) else a for a in args]
    return apply(node, wrapped)


def apply(node: Node, args: Sequence[Any], **settings: Any) -> Any:
    """The results of a higher-order op on arrays and `Subgraph`s."""
    args = list(args)
    if isinstance(args[-1], (list, tuple)):
        for graph in args:
            if isinstance(graph, Subgraph):
                graph.bind(args[-1])
        args[-1] = [a for a in args[-1] if isinstance(a, jax.Array)]
    return _LOWERINGS[node.target.name()](*args, **settings)  # type: ignore[union-attr]


def module_of(node: Node) -> Any:
    """What a ``get_attr`` node of a graph stands for."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def fits(node: Node, tables: Tables) -> bool:
    """Whether a program can hold a higher-order op with its subgraphs."""
    modules = [module_of(n) for n in node.all_input_nodes if n.op == "get_attr"]
    modules = [m for m in modules if isinstance(m, GraphModule)]
    plain = _has_plain_inputs(node) and _is_known(node)
    return bool(modules) and plain and all(_fits(m, tables) for m in modules)


def _has_plain_inputs(node: Node) -> bool:
    """Whether what the op is given are tensors, and sizes among its last operands only."""
    if node.target.name() == "associative_scan" and node.args[-1]:  # type: ignore[union-attr]
        return False
    last = node.args[-1] if isinstance(node.args[-1], (list, tuple)) else ()
    flat = torch.utils._pytree.tree_leaves(list(node.args))
    return all(
        _is_plain(a, isinstance(a.meta.get("val"), torch.SymInt) and a in last)
        for a in flat
        if isinstance(a, Node) and a.op != "get_attr"
    )


def _is_plain(node: Node, is_size: bool) -> bool:
    """Whether a node has tensors, or is a size, without sizes that depend on data."""
    return _is_known(node) and (is_size or bool(_tensors(node)))


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]


def _is_known(node: Node) -> bool:
    """Whether no size depends on data."""
    sizes = [size for tensor in _tensors(node) for size in tensor.shape]
    return not any(
        isinstance(size, torch.SymInt) and free_unbacked_symbols(size)
        for size in (*sizes, node.meta.get("val"))
    )


def _fits(module: GraphModule, tables: Tables) -> bool:
    return all(_node_fits(node, tables) for node in module.graph.nodes)


def _node_fits(node: Node, tables: Tables) -> bool:
    if node.op in ("placeholder", "output") or _is_number(node):
        return _is_known(node)
    if node.op == "get_attr":
        return isinstance(module_of(node), GraphModule)
    if node.target is operator.getitem:
        return True
    if is_control_flow(node):
        return fits(node, tables)
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    row = tables.get(overload_name(node.target))
    return (
        row is not None
        and row.kind in (Kind.NATIVE, Kind.DECOMPOSITION)
        and not row.random
        and not node.target._schema.is_mutable
        and _is_known(node)
        and all(t.device.type == "tpu" or t.ndim == 0 for t in _tensors(node))
    )
