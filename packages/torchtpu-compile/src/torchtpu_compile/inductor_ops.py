# SPDX-License-Identifier: Apache-2.0
"""Rows for the ops that Inductor's passes put into graphs; random ones are in `random_ops`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import Graph, Node
from torchtpu_core.lowering import dtypes, promotion
from torchtpu_core.lowering.table import Lowering, decomposition, native


def _iota(
    length: int, *, start: int, step: int, dtype: torch.dtype, requires_grad: bool = False
) -> jax.Array:
    kind = dtypes.to_numpy(dtype)
    return lax.iota(kind, length) * kind.type(step) + kind.type(start)


def _convert(a: jax.Array, dtype: torch.dtype) -> jax.Array:
    return promotion.cast(a, dtypes.to_numpy(dtype))


def _prepare_softmax(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    largest = jnp.max(x, axis=dim, keepdims=True)
    return largest, jnp.sum(jnp.exp(x - largest), axis=dim, keepdims=True)


def _by_aten(name: str) -> Lowering:
    """A prim that PyTorch itself writes in terms of ATen ops."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.ops.prims, name).impl_aten(*args, **kwargs)

    return decomposition(f"prims::{name}", run)


_TABLE = (
    native("aten::reshape", jnp.reshape),
    _by_aten("_low_memory_max_pool_with_offsets"),
    _by_aten("_low_memory_max_pool_offsets_to_indices"),
    native("prims::inductor_force_stride_order", lambda input, stride: input),
    native("prims::fma", lambda a, b, c: a * b + c),
    native("prims::prepare_softmax_online", _prepare_softmax),
    native("prims::convert_element_type", _convert),
    native("prims::iota", _iota),
)
#: The rows by overload name.
ROWS: Mapping[str, Lowering] = {row.overload: row for row in _TABLE}


def undo_lowering_patterns(graph: Graph) -> None:
    """Put ATen ops where Inductor's patterns put functions on its own IR.

    Raises:
        GraphError: a pattern nobody has written down here.
    """
    from torchtpu_compile.errors import GraphError, describe

    for node in list(graph.nodes):
        if node.op != "call_function" or not hasattr(node.target, "_inductor_lowering_function"):
            continue
        undo = _PATTERNS.get(getattr(node.target, "__name__", ""))
        if undo is None:
            raise GraphError(
                f"{describe(node)}: Inductor replaced these ops by a pattern of its own code "
                "generator. Compile with torch.compile(model, backend='tpu'), which does not."
            )
        undo(graph, node)


def _undo_mm_plus_mm(graph: Graph, node: Node) -> None:
    first, second, third, fourth = (node.kwargs[f"mat{i}"] for i in range(1, 5))
    with graph.inserting_before(node):
        products = [
            graph.call_function(torch.ops.aten.mm.default, pair)
            for pair in ((first, second), (third, fourth))
        ]
        for product in products:
            product.meta = dict(node.meta)
        total = graph.call_function(torch.ops.aten.add.Tensor, tuple(products))
    total.meta = dict(node.meta)
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _undo_identity(graph: Graph, node: Node) -> None:
    """The pattern found that nothing remains to be done."""
    value = node.kwargs["input_"]
    if isinstance(value, Node):
        node.replace_all_uses_with(value)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(value[user.args[1]])  # type: ignore[index]
            graph.erase_node(user)
    graph.erase_node(node)


_PATTERNS: Mapping[str, Callable[[Graph, Node], None]] = {
    "mm_plus_mm": _undo_mm_plus_mm,
    "splitwithsizes_cat_replace": _undo_identity,
    "cat_splitwithsizes_replace": _undo_identity,
}
