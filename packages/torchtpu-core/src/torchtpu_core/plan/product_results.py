# SPDX-License-Identifier: Apache-2.0
"""Products whose sums go into another result, which XLA writes as it computes them."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from torchtpu_core.plan.fusible import SMALL, is_elementwise, reduces, takes_fused
from torchtpu_core.plan.records import Block, Category, Op
from torchtpu_core.plan.uses import Uses

_SUM_OF_ROWS = "embedding_dense_backward"
_FLOAT32_BYTES = 4


def within_results(
    ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, again: Container[int]
) -> set[int]:
    """Products that only an elementwise operator reads, whose result outlives the step.

    So a layer's bias is added to logits that the script keeps; or to any that are written, as those
    of tokens that lie in another order than their product's rows. What else that operator reads has
    to be there when the product is computed, but for sums of rows, which are added to it in its
    place, as an embedding's gradient to that of logits that share its table. A result of wider
    elements is no such: whoever reads it widens the product's narrow ones himself. The gradient of
    a weight that autocast rounded is.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
        again: storages that are computed again for their readers.
    """
    found = _added_rows(ops, blocks, uses)
    rows = frozenset(found)
    for storage in uses.passing:
        writers, readers = uses.writers[storage], uses.readers.get(storage, [])
        if len(writers) != 1 or len(readers) != 1 or not takes_fused(ops[writers[0]]):
            continue
        product, end = writers[0], ops[readers[0]]
        if not is_elementwise(end) or reduces(end) or len(end.writes) != 1:
            continue
        made, others = end.writes[0], set(end.reads) - {storage}
        whole = math.prod(blocks[made].shape) == math.prod(blocks[storage].shape)
        wider = blocks[made].size_bytes > blocks[storage].size_bytes
        whole = whole and (not wider or blocks[made].category is Category.GRADIENTS)
        written = [index for other in others - rows for index in uses.writers.get(other, ())]
        late = any(product < index < readers[0] for index in written)
        kept = made in uses.fixed or (made not in again and _adds_bias(end, storage))
        if whole and not late and kept and uses.writers[made] == readers:
            found.add(storage)
    return found


def _added_rows(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> set[int]:
    """Sums of rows that are only added to another gradient: XLA adds the rows to that one.

    Those that are rounded are summed in float32 first.
    """
    found = set()
    for storage in uses.passing:
        writers, readers = uses.writers[storage], uses.readers.get(storage, [])
        if len(writers) != 1 or len(readers) != 1 or ops[writers[0]].name != _SUM_OF_ROWS:
            continue
        end, whole = ops[readers[0]], _FLOAT32_BYTES * math.prod(blocks[storage].shape)
        sizes = {blocks[one].size_bytes for one in (*end.reads, *end.writes) if one in blocks}
        if end.name == "add" and len(end.reads) > 1 and sizes == {whole}:
            found.add(storage)
    return found


def _adds_bias(op: Op, product: int) -> bool:
    """Whether an operator adds something much smaller to a product."""
    sizes = [size for one, size in zip(op.reads, op.read_bytes, strict=True) if one != product]
    return op.name == "add" and len(sizes) == 1 and sizes[0] < SMALL * sum(op.write_bytes)
