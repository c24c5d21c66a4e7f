# SPDX-License-Identifier: Apache-2.0
"""Higher-order ops inside a program: `cond`, `while_loop`, `scan` and their like.

Each becomes the control flow of XLA, with its subgraphs interpreted by the same rows as
the graph around it. A subgraph that a program cannot hold (host fallbacks, random ops,
open sizes, writes) leaves its op to be run as PyTorch does, with a read by the host.

Legend: a *flag* says whether a check of a subgraph held; checks cannot leave a loop on
their own, so each subgraph returns its flags beside its results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import GraphModule, Node
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

    def __call__(self, *arguments: jax.Array) -> tuple[tuple[Any, ...], tuple[jax.Array, ...]]:
        """Results, and the flags of the checks."""
        inputs = iter(arguments)
        env: dict[Node, Any] = {}
        results: tuple[Any, ...] = ()
        with checks.collecting() as collected:
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    env[node] = next(inputs)
                elif node.op == "call_function":
                    env[node] = self.run_node(node, env)
                elif node.op == "output":
                    results = tuple(_value(v, env) for v in _listed(node.args[0]))
        self.messages = list(collected.messages)
        return results, _all(collected.conditions)

    def flag_count(self, *arguments: jax.Array) -> int:
        """How many flags it returns for such arguments."""
        return len(jax.eval_shape(self, *arguments)[1])

    def require(self, flags: Sequence[jax.Array]) -> None:
        """Hand flags on to whoever builds the program."""
        for flag, (error, message, _) in zip(flags, self.messages, strict=True):
            checks.require(flag, error, message)


def _value(value: Any, env: Mapping[Node, Any]) -> Any:
    return env[value] if isinstance(value, Node) else value


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
    combine: Subgraph, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]
) -> Any:
    def step(carry: Any, row: Any) -> Any:
        results, flags = combine(*carry, *row, *additional)
        kept, out = results[: len(init)], results[len(init) :]
        same = tuple(jnp.asarray(v, x.dtype) for v, x in zip(kept, carry, strict=True))
        return same, (tuple(out), flags)

    carry, (outs, flags) = lax.scan(step, tuple(init), tuple(xs))
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
    return _LOWERINGS[node.target.name()](*wrapped)  # type: ignore[union-attr]


def module_of(node: Node) -> Any:
    """What a ``get_attr`` node of a graph stands for."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def fits(node: Node, tables: Tables) -> bool:
    """Whether a program can hold a higher-order op with its subgraphs."""
    modules = [module_of(n) for n in node.all_input_nodes if n.op == "get_attr"]
    modules = [m for m in modules if isinstance(m, GraphModule)]
    return bool(modules) and _has_plain_inputs(node) and all(_fits(m, tables) for m in modules)


def _has_plain_inputs(node: Node) -> bool:
    """Whether what the op is given are tensors of fixed sizes, and numbers."""
    flat = torch.utils._pytree.tree_leaves(list(node.args))
    if node.target.name() == "associative_scan" and node.args[-1]:  # type: ignore[union-attr]
        return False
    return all(
        not isinstance(a, Node) or isinstance(a.meta.get("val"), torch.Tensor) or a.op == "get_attr"
        for a in flat
    ) and all(_is_static(t) for a in flat if isinstance(a, Node) for t in _tensors(a))


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _fits(module: GraphModule, tables: Tables) -> bool:
    return all(_node_fits(node, tables) for node in module.graph.nodes)


def _node_fits(node: Node, tables: Tables) -> bool:
    if node.op in ("placeholder", "output"):
        return all(map(_is_static, _tensors(node))) and not isinstance(
            node.meta.get("val"), torch.SymInt
        )
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
        and all(map(_is_static, _tensors(node)))
        and all(t.device.type == "tpu" or t.ndim == 0 for t in _tensors(node))
    )
