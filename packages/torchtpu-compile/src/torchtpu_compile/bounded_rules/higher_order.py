# SPDX-License-Identifier: Apache-2.0
"""Control flow at padded sizes: subgraphs are interpreted at them too.

What an op walks along (rows of `scan`, `map`, `associative_scan`) has its true rows in
front: those behind them change neither the results in front nor what is carried.
"""

from __future__ import annotations

from typing import Any

import jax
from torch.fx import Node

from torchtpu_compile import control_flow
from torchtpu_compile.bounded import BoundedInterpreter
from torchtpu_compile.bounded_call import Call
from torchtpu_compile.bounded_rules.common import refuse
from torchtpu_compile.padded import Padded, Sizes, is_padded, true_size
from torchtpu_compile.symbols import expression


class _Subgraph(control_flow.Subgraph):
    """A subgraph of padded arrays; on the outside they are plain ones."""

    def __init__(self, node: Node, call: Call) -> None:
        interpreter = BoundedInterpreter((), call.tables)
        super().__init__(
            control_flow.module_of(node),
            lambda node, env: interpreter.run_node(node, env, call.sizes, None),
        )
        self.sizes = call.sizes

    def enter(self, node: Node, value: jax.Array) -> Padded:
        """An operand with the sizes that the tracer saw."""
        return Padded(value, _dims(self.sizes, node))

    def leave(self, node: Node, value: Padded) -> jax.Array:
        """A result with one factor per dimension."""
        return self.sizes.compact(value).array


def _dims(sizes: Sizes, node: Node) -> tuple[Any, ...]:
    return tuple(sizes.dim(expression(n)) for n in node.meta["val"].shape)


def lowered(call: Call) -> Any:
    """The results of a higher-order op."""
    settings: dict[str, Any] = {}
    name = call.node.target.name()  # type: ignore[union-attr]
    if name in ("scan", "map_impl", "associative_scan"):
        rows = call.args[2 if name == "scan" else 1][0]
        if is_padded(rows.dims[0]) and name == "scan":
            settings["count"] = call.sizes.true(true_size(rows.dims[0]))
        elif is_padded(rows.dims[0]):
            _refuse_checks(call)
    args = [_outside(call, a) for a in call.args]
    results = control_flow.apply(call.node, args, **settings)
    return [
        None if r is None else Padded(r, tuple(call.sizes.dim(e) for e in call.exprs(i)))
        for i, r in enumerate(results)
    ]


def _outside(call: Call, value: Any) -> Any:
    """An operand as control flow takes it."""
    if isinstance(value, Node):
        return _Subgraph(value, call)
    if isinstance(value, (list, tuple)):
        return [_outside(call, v) for v in value]
    return call.sizes.compact(value).array if isinstance(value, Padded) else value


_CHECKED = ("aten::index", "aten::gather", "aten::embedding", "aten::_assert")


def _refuse_checks(call: Call) -> None:
    """Refuse checks of values, which the rows behind the true ones may fail."""
    for source in call.node.all_input_nodes:
        module = control_flow.module_of(source) if source.op == "get_attr" else None
        for node in module.graph.nodes if module is not None else ():
            if str(getattr(node.target, "_schema", "")).startswith(_CHECKED):
                raise refuse(call, "checks values of rows of open number")
