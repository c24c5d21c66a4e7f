# SPDX-License-Identifier: Apache-2.0
"""Few images whose rows of pixels lie along the lanes, as they are joined for a convolution.

To join features that lie along the lanes XLA's TPU compiler has to shift them, and it splits what
is joined (`plan.split_batches`) with a column of pixels along the lanes instead. In 16 bits norms
and elementwise work of the same images keep that order, so that 64 features are not padded to 128
lanes; only convolutions have features along the lanes. In 32 bits, and where a norm reads what is
joined (dense blocks), it is the convolutions' order that is kept, and so it is in what is made of a
pooled image before that is joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.plan.paddings import image_padding
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.split_batches import is_split, joined_images, operands_of_parts


def joined_paddings(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, float]:
    """Padded over plain elements of those images, by storage.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    sizes = _joined_sizes(ops, blocks)
    if not sizes:
        return {}
    pooled = _pooled(ops, blocks)
    made = {storage for op in ops for storage in op.writes if storage in blocks} - pooled
    shapes = {s: blocks[s].shape for s in made if is_split(blocks[s].shape)}
    return {
        storage: min(image_padding(shape), tile_padding(shape[-2], shape[1]))
        for storage, shape in shapes.items()
        if _pixels(shape) in sizes
    }


def _pixels(shape: Sequence[int]) -> tuple[int, ...]:
    """Images and their pixels, whatever their features."""
    return shape[0], *shape[2:]


def _joined_sizes(ops: Sequence[Op], blocks: dict[int, Block]) -> set[tuple[int, ...]]:
    """Images and pixels of what convolutions of 16 bits read joined."""
    read = joined_images(ops) & operands_of_parts(ops, blocks)
    convolutions = (op for op in ops if op.name == "convolution" and op.dtype == "bf16")
    return {_pixels(blocks[op.reads[0]].shape) for op in convolutions if op.reads[0] in read}


def _pooled(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Images with fewer pixels than what they are made of, and what is made of them alone."""
    found: set[int] = set()
    for op in ops:
        if op.name == "cat":
            continue
        maps = [s for s in op.reads if s in blocks and is_split(blocks[s].shape)]
        for storage in op.writes:
            shape = blocks[storage].shape if storage in blocks else ()
            if not is_split(shape):
                continue
            same = [s for s in maps if _pixels(blocks[s].shape) == _pixels(shape)]
            smaller = not same and any(blocks[s].shape[-1] > shape[-1] for s in maps)
            if smaller or not found.isdisjoint(same):
                found.add(storage)
    return found
