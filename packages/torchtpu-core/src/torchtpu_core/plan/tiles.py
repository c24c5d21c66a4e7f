# SPDX-License-Identifier: Apache-2.0
"""Bytes that values take in HBM with the padding of a TPU's tiles: 8 sublanes of 128 lanes.

XLA's TPU compiler chooses which two dimensions lie along lanes and sublanes by who makes a value:

 - convolutions, and norms and linear layers over pixels: features and batch, in the order that
   wastes less, so that 64 features in a batch of 64 take twice their bytes;
 - gathers and sums by index: whole rows, features along the lanes;
 - products and norms over features: the same, unless the rows are narrow;
 - batched products of narrow matrices: rows and columns, in the order that wastes less.

Elementwise work keeps the order of what it reads. Other values are padded too little to matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchtpu_core.plan.gathers import is_gather, is_sum
from torchtpu_core.plan.grouped import operands_of_groups
from torchtpu_core.plan.images import images_of
from torchtpu_core.plan.joined_images import joined_paddings
from torchtpu_core.plan.paddings import image_padding, matrix_padding, row_padding
from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.split_batches import part_padding, whole_images
from torchtpu_core.simulator.rates import LANES

_FEATURE_NORMS = frozenset(("native_layer_norm", "_fused_rms_norm"))


def padded_sizes(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, int]:
    """Bytes with padding of a step's values, by storage, where that is known to matter."""
    paddings = _images(ops, blocks)
    for op in ops:
        for storage, factor in _rows(op, blocks):
            if storage in blocks:
                paddings[storage] = factor
        if op.work is not Work.ELEMENTWISE:
            continue
        kept = {_form(blocks[s]): paddings[s] for s in op.reads if paddings.get(s, 1.0) > 1.0}
        for storage in op.writes if kept else ():
            if storage not in paddings and storage in blocks:
                paddings[storage] = kept.get(_form(blocks[storage]), 1.0)
    for storage, image in images_of(ops, blocks).items():
        if image.is_map and paddings.get(storage, 1.0) == 1.0:
            paddings[storage] = image_padding((image.batch, image.features))
    paddings.update(operands_of_groups(ops, blocks))
    paddings.update(whole_images(ops, blocks))
    return {
        storage: round(blocks[storage].size_bytes * factor)
        for storage, factor in paddings.items()
        if blocks[storage].category is None
    }


def _form(block: Block) -> tuple[int, ...]:
    """What a change of shape before the last two dimensions leaves as it is."""
    return math.prod(block.shape), *block.shape[-2:]


def _images(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, float]:
    """What convolutions read and write, and what others make of that in the same shape."""
    images: set[int] = set()
    others: set[int] = set()
    for op in ops:
        if op.name.startswith("convolution"):
            images.update(op.reads, op.writes)
        elif op.work in (Work.ATTENTION, Work.MATMUL):
            others.update(op.writes)
    images = (images - others) & blocks.keys()
    for op in ops:
        shapes = {blocks[storage].shape for storage in images.intersection(op.reads)}
        images.update(storage for storage in op.writes if blocks[storage].shape in shapes)
    maps = (storage for storage in images if len(blocks[storage].shape) in (3, 4, 5))
    found = {storage: blocks[storage].shape for storage in maps}
    joined = joined_paddings(ops, blocks)
    return {
        storage: joined.get(storage, image_padding(shape)) * part_padding(shape)
        for storage, shape in found.items()
    }


def _rows(op: Op, blocks: dict[int, Block]) -> Iterator[tuple[int, float]]:
    """The padding of what an operator moves by index, or multiplies, by storage."""
    if is_gather(op):
        yield from ((storage, row_padding(blocks[storage].shape)) for storage in op.writes)
    elif is_sum(op):
        known = (storage for storage in op.reads if storage in blocks)
        yield from ((storage, row_padding(blocks[storage].shape)) for storage in known)
    elif op.writes and (is_product(op) or op.name in _FEATURE_NORMS):
        made = op.writes[0]
        if len(blocks[made].shape) > 1 and blocks[made].shape[-1] > LANES // 2:
            yield from ((one, row_padding(blocks[one].shape)) for one in op.writes)
    if op.work is Work.ATTENTION and op.gradient and not op.flash:
        wide = (storage for storage in op.writes if storage in blocks)
        yield from ((s, matrix_padding(blocks[s].shape)) for s in wide if len(blocks[s].shape) > 2)
    if is_product(op) and op.products and op.products[0][0] > 1:
        for storage in (*op.reads, *op.writes):
            shape = blocks[storage].shape if storage in blocks else ()
            if len(shape) > 2 and max(shape[-2:]) < LANES:
                yield storage, matrix_padding(shape)
