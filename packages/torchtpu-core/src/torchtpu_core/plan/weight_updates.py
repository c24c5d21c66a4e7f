# SPDX-License-Identifier: Apache-2.0
"""Updates of convolutions' weights, which XLA's TPU compiler makes with the weight's gradient.

Weights in float32 lie with features of the image along the lanes, unless features of the result
waste less there. The gradients of strided convolutions' weights, and of those over volumes, are
made the other way round, unless that wastes more; those of others are not
(`lowering.convolution_products`). Where either wastes as much (512 by 256, 64 by 64), the
optimizer's update, done at the end of the gradient's convolution, has the gradient's order:
gradient, weight and the optimizer's state are written once more, and moved to their places after
the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchtpu_core.lowering.layout import padded_elements
from torchtpu_core.plan.records import Block, Category, Op, Phase, Work
from torchtpu_core.plan.vmem import Life

#: A convolution's gradient reads its result's gradient, its image and its weight.
_WEIGHT = 2
#: Dimensions of the weight of a convolution over pixels; over volumes one more.
_RANK = 4
_FLOAT32_BYTES = 4
_HELD = (Category.PARAMETERS, Category.OPTIMIZER, Category.GRADIENTS)


def lives_of_updates(ops: Sequence[Op], blocks: dict[int, Block]) -> Iterator[Life]:
    """What is written of weights and their state before it is moved to its place.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    for index, gradient, storage, end in _moved(ops, blocks):
        yield Life(gradient, blocks[storage].size_bytes, (index, end - 1), end)


def waits_of_updates(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, tuple[int, int]]:
    """From which operator to which the places are free to which that is moved, by storage.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    return {storage: (index, end - 1) for index, _, storage, end in _moved(ops, blocks)}


def _moved(ops: Sequence[Op], blocks: dict[int, Block]) -> Iterator[tuple[int, int, int, int]]:
    """Gradients' operators, gradients, what is changed by them, and when that has been moved."""
    for index, op in enumerate(ops):
        if not op.name.startswith("convolution_backward") or len(op.reads) <= _WEIGHT:
            continue
        weight = blocks.get(op.reads[_WEIGHT])
        if weight is None or not _lies_both_ways(weight.shape):
            continue
        if _is_grouped(op) or not (op.strided or len(weight.shape) > _RANK):
            continue
        for made in (s for s in op.writes if s in blocks and blocks[s].shape == weight.shape):
            for storage, end in _updated(ops, blocks, index, made).items():
                last = blocks[storage].category is Category.GRADIENTS
                yield index, made, storage, len(ops) if last else end


def _is_grouped(op: Op) -> bool:
    return not op.products or op.products[0][0] > 1


def _lies_both_ways(shape: Sequence[int]) -> bool:
    """Whether a weight's features waste as much along the lanes as along the sublanes."""
    if len(shape) < _RANK or math.prod(shape[2:]) == 1:
        return False
    made, read = shape[:2]
    return padded_elements(made, read) == padded_elements(read, made)


def _updated(
    ops: Sequence[Op], blocks: dict[int, Block], index: int, gradient: int
) -> dict[int, int]:
    """What elementwise work of the optimizer makes of a gradient, and when it has done so.

    Nothing, if that needs another look at the gradient first, as clipping by its norm does.
    """
    shape = blocks[gradient].shape
    made = {gradient}
    found: dict[int, int] = {}
    for at, op in enumerate(ops[index + 1 :], index + 1):
        if made.isdisjoint(op.reads):
            continue
        writes = [s for s in op.writes if s in blocks]
        same = all(blocks[s].shape == shape for s in writes)
        if not same or not (op.work is Work.ELEMENTWISE or op.name == "_to_copy"):
            return {}
        made.update(writes)
        if op.phase is Phase.OPTIMIZER:
            found.update(dict.fromkeys((s for s in {*op.reads, *writes} & made), at + 1))
    held = {s: end for s, end in found.items() if blocks[s].category in _HELD}
    whole = _FLOAT32_BYTES * math.prod(shape)
    return held if all(blocks[s].size_bytes == whole for s in held) else {}
