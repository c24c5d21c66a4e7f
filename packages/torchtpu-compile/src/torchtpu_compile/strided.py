# SPDX-License-Identifier: Apache-2.0
"""`as_strided` in a graph: positions in memory, where values have only a shape.

PyTorch reads and writes the storage of the operand, whose elements may lie in any order or be
part of a larger tensor. The operand, or the tensor that it is a view of, is laid out here as
its strides say, and the lowering is given that storage, contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import sympy
import torch
from jax import lax
from torch.fx import Node
from torchtpu_core.lowering import view_ops

from torchtpu_compile.result_layout import memory_order, strides_like
from torchtpu_compile.symbols import expression, same

_READS = torch.ops.aten.as_strided.default
_WRITES = torch.ops.aten.as_strided_scatter.default


class _Block(NamedTuple):
    """Elements that lie densely in memory, in this order, the first at `start`."""

    flat: jax.Array
    start: int


def is_strided(node: Node) -> bool:
    """Whether a node addresses memory by strides."""
    return node.target in (_READS, _WRITES)


def is_plain(node: Node) -> bool:
    """Whether the operand of such a node is its storage, from the first element on, in order."""
    operand = _operand(node)
    value = operand.meta["val"]
    offset = value.storage_offset()
    starts = isinstance(offset, int) and offset == 0
    return starts and value.is_contiguous() and is_whole(operand)


def is_whole(node: Node) -> bool:
    """Whether a tensor is no part of another one of the graph."""
    base = base_of(node)
    return base is None or (same(_count(base), _count(node)) and is_whole(base))


def _count(node: Node) -> sympy.Expr:
    value = node.meta.get("val")
    return expression(value.numel() if isinstance(value, torch.Tensor) else -1)


def lower(node: Node, args: Sequence[Any], env: Mapping[Node, Any]) -> jax.Array:
    """The value of an `as_strided` or `as_strided_scatter` node.

    Args:
        node: the node.
        args: its arguments; the operand and what is written are arrays.
        env: values of the nodes before it.

    Raises:
        ValueError: no tensor of the graph holds the memory that it addresses.
    """
    operand = _operand(node).meta["val"]
    at = 2 if node.target is _WRITES else 1
    size, stride, offset = (*args[at:], None)[:3]
    own = operand.storage_offset()
    offset = own if offset is None else offset
    if not isinstance(offset, int):
        raise ValueError(
            "where its operand begins in memory depends on open sizes: give storage_offset, or use "
            "slices or unfold() in place of as_strided()"
        )
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    empty = not all(size)
    for block in _blocks(node, env):
        inside = block.start <= offset and offset + reach < block.start + block.flat.size
        if not (empty or inside):
            continue
        if node.target is _READS:
            return view_ops.as_strided(block.flat, size, stride, offset - block.start)
        where = view_ops.strided_positions(size, stride, offset - block.start)
        source = args[1].astype(block.flat.dtype)
        written = block.flat if empty else block.flat.at[where].set(source)
        return _view(written, operand, args[0].shape, block.start)
    raise ValueError(
        f"it addresses places {offset} to {offset + reach} of memory, which no tensor of the "
        "graph holds: use slices or unfold() in place of as_strided()"
    )


def _operand(node: Node) -> Node:
    operand = node.args[0]
    assert isinstance(operand, Node)
    return operand


def _blocks(node: Node, env: Mapping[Node, Any]) -> Iterator[_Block]:
    """Memory of the operand and of the tensors that it is a view of, where it is dense."""
    source: Node | None = _operand(node)
    while source is not None:
        value, meta = env.get(source), source.meta.get("val")
        if isinstance(value, jax.Array) and isinstance(meta, torch.Tensor):
            block = _dense(value, meta)
            if block is not None:
                yield block
        source = base_of(source)


def _dense(value: jax.Array, meta: torch.Tensor) -> _Block | None:
    start = meta.storage_offset()
    sizes, strides = ([expression(n) for n in given] for given in (meta.shape, meta.stride()))
    order = memory_order(sizes, strides)
    if order is None or not isinstance(start, int):
        return None
    return _Block(lax.reshape(jnp.transpose(value, order), (value.size,)), start)


def base_of(node: Node) -> Node | None:
    """The tensor that a node is a view of, by its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # a piece of a list of views
        return node.args[0] if node.op == "call_function" and _is_node(node.args) else None
    first = schema.arguments[0].alias_info if schema.arguments else None
    is_view = first is not None and not first.is_write and _is_node(node.args)
    return node.args[0] if is_view else None


def _is_node(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], Node)


def _view(flat: jax.Array, meta: torch.Tensor, shape: Sequence[int], start: int) -> jax.Array:
    """The operand, read from memory whose first element is at `start`."""
    strides, offset = meta.stride(), meta.storage_offset()
    if all(isinstance(n, int) for n in (*strides, offset)):
        return view_ops.as_strided(flat, shape, strides, offset - start)
    if flat.size != math.prod(shape):  # else it is the block itself, whatever the sizes
        raise ValueError(
            "it writes to a view whose strides depend on open sizes: use index_put or slices in "
            "place of as_strided_scatter()"
        )
    return view_ops.as_strided(flat, shape, strides_like(meta, shape), 0)
