# SPDX-License-Identifier: Apache-2.0
"""Operands that XLA's TPU compiler writes in the shape of a batched product's sums.

The elementwise end of a product reads its operands in the product's shape. A bias of ``[H, T, S]``
for scores ``[B, H, T, S]`` of a product ``[B*H, T, S]`` is no broadcast along dimensions of that
shape: it is written for each of the batch, in float32 as the sums are. A matrix ``[T, S]``, or one
number for each row, is read as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtpu_core.plan.fusible import is_elementwise, reduces
from torchtpu_core.plan.paddings import matrix_padding
from torchtpu_core.plan.products import is_convolution
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life
from torchtpu_core.simulator.rates import LANES

_SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One of them.

    Attributes:
        operand: what is written in another shape.
        size_bytes: of that.
        product: the batched product at whose end it is read.
        end: the elementwise result that is made of both.
    """

    operand: int
    size_bytes: int
    product: int
    end: int


def broadcasts_of(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> list[Broadcast]:
    """What is written so.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
    """
    return [
        Broadcast(operand, size, index, storage)
        for index, op in enumerate(ops)
        if op.products and op.products[0][0] > 1 and not is_convolution(op)
        for storage in _ends(ops, blocks, uses, op.writes[0])
        for operand, size in _spread(ops, blocks, uses, storage, index)
    ]


def written_for(broadcasts: Sequence[Broadcast]) -> dict[int, int]:
    """Bytes that are written for elementwise ends of products, by the storage of these."""
    return {one.end: one.size_bytes for one in broadcasts}


def broadcast_lives(broadcasts: Sequence[Broadcast]) -> list[Life]:
    """When they take a place: from the first product that reads an operand so to the last."""
    read: dict[tuple[int, int], list[Broadcast]] = defaultdict(list)
    for one in broadcasts:
        read[one.operand, one.size_bytes].append(one)
    found = []
    for (_, size), places in read.items():
        products = sorted({one.product for one in places})
        found.append(Life(places[0].end, size, tuple(products), max(products) + 1))
    return found


def _ends(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int) -> Iterator[int]:
    """Elementwise results made of a product's that nobody else reads."""
    count = math.prod(blocks[storage].shape) if storage in blocks else 0
    for op in uses.readers_alone(ops, storage):
        if not is_elementwise(op) or reduces(op) or op.writes[0] not in blocks:
            return
        storage = op.writes[0]
        if math.prod(blocks[storage].shape) != count:
            return
        yield storage


def _spread(
    ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int, product: int
) -> Iterator[tuple[int, int]]:
    """Operands of an end that are written in the product's shape, with the bytes of that."""
    batch, rows, _, columns = ops[product].products[0]
    shape, made = blocks[storage].shape, blocks[ops[product].writes[0]].shape
    count, matrix = math.prod(shape), rows * columns
    if len(shape) == len(made) or count != batch * matrix:
        return
    padding = matrix_padding((batch, rows, columns)) if max(rows, columns) < LANES else 1.0
    size = round(count * _SUM_BYTES * padding)
    for operand in ops[uses.writers[storage][-1]].reads:
        if operand in blocks and matrix < math.prod(blocks[operand].shape) < count:
            yield operand, size
