# SPDX-License-Identifier: Apache-2.0
"""Results of a step that XLA's TPU compiler keeps a second time, in the order of their product.

What leaves a program lies so that tiles waste least: logits ``[B, T, V]`` that the script keeps
have their tokens along the lanes if ``V`` fills none and ``T`` does. Their product has rows
``[B*T, V]``, and so has what reads them; they are copied into the other order once nobody does.
Results of two dimensions lie as the product does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.fusible import is_elementwise, reduces
from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life
from torchtpu_core.simulator.rates import LANES, SUBLANES

#: Dimensions of tokens in a batch.
_RANK = 3


def copied_results(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> list[Life]:
    """Values that are copied into results, from their product to their last reader.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
    """
    found = []
    for storage in uses.fixed & uses.writers.keys():
        shape, written = blocks[storage].shape, uses.writers[storage]
        if len(shape) < _RANK or not _lies_otherwise(*shape[-2:]) or len(written) != 1:
            continue
        product = _product_of(ops, blocks, uses, storage)
        if product is not None:
            points = (product, *uses.readers[storage]) if uses.readers[storage] else (product,)
            made = ops[product].writes[0]
            found.append(Life(made, blocks[storage].size_bytes, points, points[-1] + 1))
    return found


def _lies_otherwise(rows: int, columns: int) -> bool:
    """Whether a matrix takes fewer tiles with its rows along the lanes."""
    return _tiles(columns, rows) < _tiles(rows, columns)


def _tiles(rows: int, columns: int) -> int:
    return -(-rows // SUBLANES) * -(-columns // LANES)


def _product_of(
    ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int
) -> int | None:
    """The product of rows at whose end a result is made, if it is."""
    count, before = math.prod(blocks[storage].shape), len(ops)
    while storage in blocks and math.prod(blocks[storage].shape) == count:
        index = uses.writers[storage][-1] if storage in uses.writers else before
        if index >= before:  # made before the step, or changed in place
            return None
        before, op = index, ops[index]
        if is_product(op):
            return index if len(blocks[storage].shape) < _RANK else None
        if not is_elementwise(op) or reduces(op) or not op.reads:
            return None
        storage = op.reads[0]
    return None
