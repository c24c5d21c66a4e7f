# SPDX-License-Identifier: Apache-2.0
"""Finds attention that a script writes out: batched products around a softmax.

Without `scaled_dot_product_attention` nothing says how wide the heads are. The product whose
result a softmax reads sums over a head's width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.plan.records import Op, Work

_PRODUCTS = ("bmm", "baddbmm")
_SOFTMAX = ("_softmax", "_safe_softmax")
#: Operators between the product and the softmax: scale, mask, cast.
_FARTHEST = 6


def heads_of_products(ops: Sequence[Op]) -> dict[int, int]:
    """The width of the heads of each product of written-out attention, by its index."""
    writer: dict[int, int] = {}
    widths: dict[int, int] = {}  # by the number of heads in the batch
    for index, op in enumerate(ops):
        if op.name in _SOFTMAX:
            scores = _product_before(ops, op, writer)
            if scores is not None:
                batch, _, width, _ = scores.products[0]
                widths[batch] = width
        for storage in op.writes:
            writer[storage] = index
    return {
        index: widths[op.products[0][0]]
        for index, op in enumerate(ops)
        if op.name in _PRODUCTS
        and op.products
        and widths.get(op.products[0][0]) in op.products[0][1:]
    }


def _product_before(ops: Sequence[Op], softmax: Op, writer: dict[int, int]) -> Op | None:
    """The batched product whose scores a softmax reads, through elementwise work."""
    op = softmax
    for _ in range(_FARTHEST):
        source = writer.get(op.reads[0]) if op.reads else None
        if source is None:
            return None
        op = ops[source]
        if op.name in _PRODUCTS:
            return op if op.products else None
        if op.work not in (Work.ELEMENTWISE, Work.MOVE):
            return None
    return None
