# SPDX-License-Identifier: Apache-2.0
"""Tokens ``[B, T, D]`` that XLA's TPU compiler keeps as rows ``[B*T, D]`` from product to product.

Linear layers multiply rows, and PyTorch gives all between them the shape of tokens. XLA moves those
reshapes together until they cancel, if nothing needs the tokens otherwise: then what is between two
products is computed in their shape. An image whose pixels become tokens, and tokens that are moved,
as by a batch that is not the first dimension, make all of the stream stay as it is. So do lengths
of which rows fill no tiles, which products take as they are. Tokens of experts ``[E, B, C, D]``,
rows ``[E, B*C, D]`` of batched products, are kept by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.simulator.rates import SUBLANES

#: Dimensions of tokens in a batch.
RANK = 3
#: Those of tokens for each of several experts.
RANK_OF_EXPERTS = 4
_MOVES = frozenset({"clone", "roll"})
_COPIES = frozenset({"clone", "_to_copy"})
#: Of logits ``[B, V, T]``, computed in the order of the ``[B, T, V]`` that these are a view of.
_BY_CLASS = frozenset(
    ["_log_softmax", "_log_softmax_backward_data", "nll_loss2d_forward", "nll_loss2d_backward"]
)


def streams_of(
    ops: Sequence[Op], blocks: dict[int, Block], rank: int = RANK
) -> dict[tuple[int, ...], bool]:
    """Batch and length of tokens whose rows fill tiles: whether they are kept as rows.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        rank: dimensions of the tokens, of which the first is the experts' if there are four.
    """
    found: dict[tuple[int, ...], bool] = {}
    classified: set[int] = set()
    for op in ops:
        if op.name in _BY_CLASS or (
            op.name in _COPIES and op.reads and classified.issuperset(op.reads)
        ):
            classified.update(op.writes)
            continue
        block = blocks.get(op.writes[0]) if op.writes else None
        if block is None or not (op.work is Work.ELEMENTWISE or op.name in _MOVES):
            continue
        if len(block.shape) != rank:
            continue
        read = [blocks[s] for s in op.reads if s in blocks]
        others = [one for one in read if math.prod(one.shape) == math.prod(block.shape)]
        kept = all(_lies_as(one.shape, block.shape) for one in others)
        for one in (block,) if kept else (block, *others):
            if (tokens := tokens_of(one, rank)) is not None:
                found[tokens] = found.get(tokens, True) and kept
    return found


def rows_of(tokens: Sequence[int]) -> tuple[int, ...]:
    """The shape of the rows of tokens.

    >>> rows_of((4, 64, 512)), rows_of((8, 4, 64, 512))
    ((256, 512), (8, 256, 512))
    """
    *batches, length, width = tokens
    return (*batches[:-1], batches[-1] * length, width)


def _lies_as(shape: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether a value has the shape of tokens, or of their rows."""
    whole = [size for size in shape if size > 1]
    return shape == tokens or whole == [size for size in rows_of(tokens) if size > 1]


def tokens_of(block: Block, rank: int = RANK) -> tuple[int, ...] | None:
    """Batch and length, if that is the shape of tokens whose rows fill tiles."""
    shape = block.shape
    return tuple(shape[:-1]) if len(shape) == rank and shape[-2] % SUBLANES == 0 else None
