# SPDX-License-Identifier: Apache-2.0
"""Which unit an operator keeps busy: collectives, attention, products, moves; else elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtpu_core.plan import collectives, op_work
from torchtpu_core.plan.attention_kernels import attention_of
from torchtpu_core.plan.records import Op, Work


def classify(
    op: Op,
    func: Any,
    args: Sequence[Any],
    flat: list[Any],
    on_device: list[Any],
    results: list[Any],
    rank: int,
) -> None:
    """Says of an operator what it does.

    Args:
        op: gets the answer; its reads and writes are known.
        func: the operator.
        args: its positional arguments.
        flat: the leaves of all its arguments.
        on_device: the tensors of the device among them.
        results: what it makes on the device.
        rank: who runs it.
    """
    name = op.name
    if func.namespace in collectives.NAMESPACES and name in collectives.KINDS:
        _collective(op, args, flat, results, rank)
        return
    attention = attention_of(name, args)
    if attention is not None:
        op.work = Work.ATTENTION
        op.scores, op.head_dims = attention.scores, attention.head_dims
        op.gradient, op.again, op.flash = attention.gradient, attention.again, attention.flash
        op.kernel_bytes, op.drawn = attention.hbm_bytes, attention.drawn
        op.dtype = op_work.dtype_of(on_device[0])
        return
    products = op_work.products_of(name, args, results[0] if results else None)
    op.products = tuple(product for product in products if all(product))
    if op.products:
        op.work = Work.MATMUL
        op.dtype = op_work.dtype_of(on_device[0])
    elif name in op_work.MOVES:
        op.work = Work.MOVE


def _collective(
    op: Op, args: Sequence[Any], flat: list[Any], results: list[Any], rank: int
) -> None:
    op.work = Work.COLLECTIVE
    op.collective = collectives.KINDS[op.name]
    op.group = collectives.group_of(flat)
    op.moved_bytes = collectives.put_in_bytes(op.name, args)
    if op.collective == "all_to_all":
        result = results[0] if results else None
        op.sent, op.received = collectives.parts_of(op.name, args, result, len(op.group), op.line)
    if op.name in collectives.MESSAGES:
        _message(op, args, rank)


def _message(op: Op, args: Sequence[Any], rank: int) -> None:
    """Who sends to whom, and that what is received is written."""
    op.peer = op.group[int(args[2])]
    op.group = (rank, op.peer)
    if op.name == "recv_":
        op.group = (op.peer, rank)
        op.reads, op.writes = (), op.reads
        op.read_bytes, op.write_bytes = (), op.read_bytes
