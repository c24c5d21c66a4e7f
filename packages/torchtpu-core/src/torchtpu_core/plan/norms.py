# SPDX-License-Identifier: Apache-2.0
"""Norms over features that XLA's TPU compiler writes for the product that reads them.

It computes a norm of tokens ``[B, T, D]`` within the product where that takes rows ``[B*T, D]`` of
them: all that is between two products has the product's shape then. What lies otherwise, as images
``[N, H, W, D]`` do and what is moved, as windows are, is written as it is rounded for the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.fusible import SMALL, is_elementwise, shrinks
from torchtpu_core.plan.records import Block, Op, Phase
from torchtpu_core.plan.rows import streams_of, tokens_of

NORMS = frozenset({"native_layer_norm", "_fused_rms_norm", "native_group_norm"})
_MOVES = frozenset({"clone", "roll"})
#: Dimensions of tokens in a batch.
_ROWS = 3


def reordered_norms(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Norms of tokens whose rows are moved, as by a batch that is not the first dimension.

    They are written where a product reads them, whatever its dtype.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    found: set[int] = set()
    for op in ops:
        if op.name in NORMS:
            shapes.update((s, blocks[s].shape) for s in op.writes[:1] if s in blocks)
        elif op.name == "clone" and op.reads and op.reads[0] in shapes:
            shape = shapes[op.reads[0]]
            moved = (*shape[1::-1], *shape[2:])
            rows = (s for s in op.writes if s in blocks and len(shape) == _ROWS)
            found.update(s for s in rows if blocks[s].shape == moved)
    return found


def written_norms(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of casts and moves of norms that are written where a bfloat16 product reads them.

    Of tokens that are kept as rows it reads what the norm is made of.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    streams = streams_of(ops, blocks)
    lying: dict[int, bool] = {}  # results made of norms: whether they lie otherwise than rows
    found: set[int] = set()
    for op in ops:
        if op.name in NORMS:
            made = op.writes[:1]
            lying.update((s, s in blocks and _lies(blocks[s], streams)) for s in made)
        elif op.name in _MOVES | {"_to_copy"} and op.reads and lying.keys() >= set(op.reads):
            moved = op.name in _MOVES or any(lying[s] for s in op.reads)
            lying.update(dict.fromkeys(op.writes, moved))
            found.update(op.writes if moved else ())
    return found


def made_in_rows(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of the shape of tokens that are kept as rows, of which products compute norms.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    rows = {tokens for tokens, kept in streams_of(ops, blocks).items() if kept}
    made = (s for op in ops for s in op.writes if s in blocks)
    return {s for s in made if tokens_of(blocks[s]) in rows}


def scaled_by_reductions(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of elementwise work on a reduction, as a norm over features written out is.

    Those of the forward pass: gradients of a softmax are computed within the products. A factor
    for each feature, as that of a norm over positions, is applied within them, too.
    """
    found: set[int] = set()
    for op in ops:
        if op.phase is not Phase.FORWARD or not is_elementwise(op):
            continue
        scaled = (read for read in op.reads if read in found)
        if shrinks(op) or not all(_is_of_features(blocks, read, op.writes) for read in scaled):
            found.update(op.writes)
    return found


def _is_of_features(blocks: dict[int, Block], factor: int, made: Sequence[int]) -> bool:
    """Whether a factor has one number for each feature of what is made with it."""
    shape = blocks[factor].shape if factor in blocks else ()
    return bool(shape) and all(
        len(result) == len(shape)
        and result[-1] == shape[-1] > 1
        and math.prod(shape) < SMALL * math.prod(result)
        for result in (blocks[one].shape for one in made if one in blocks)
    )


def _lies(block: Block, streams: dict[tuple[int, ...], bool]) -> bool:
    """Whether a norm's result lies otherwise than rows of a product."""
    tokens = tokens_of(block)
    return len(block.shape) > _ROWS or (tokens is not None and not streams.get(tokens, True))
