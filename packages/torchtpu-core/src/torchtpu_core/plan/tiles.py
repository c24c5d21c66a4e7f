# SPDX-License-Identifier: Apache-2.0
"""Bytes that images take in HBM, whose features and batch are padded to the tiles of a TPU.

XLA's TPU compiler keeps what convolutions read and write with features or batch along the 128
lanes, and the other along the 8 sublanes, whichever wastes less; 64 features in a batch of 64
take twice their bytes. Other tensors keep their order, and are padded too little to matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.simulator.rates import LANES, SUBLANES
from torchtpu_core.units import ceil_div


def image_sizes(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, int]:
    """Bytes of the padded storages, by storage, of a step that has convolutions.

    What convolutions read and write, and what other operators make of that in the same shape.
    """
    images: set[int] = set()
    others: set[int] = set()
    for op in ops:
        if op.name.startswith("convolution"):
            images.update(op.reads, op.writes)
        elif op.work in (Work.ATTENTION, Work.MATMUL):
            others.update(op.writes)
    images -= others
    for op in ops:
        shapes = {blocks[storage].shape for storage in images.intersection(op.reads)}
        images.update(storage for storage in op.writes if blocks[storage].shape in shapes)
    sizes = {}
    for storage in images:
        block = blocks[storage]
        if len(block.shape) in (3, 4, 5) and block.category is None:
            sizes[storage] = round(block.size_bytes * padding(block.shape))
    return sizes


def padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of a batch of feature maps ``[N, C, ...]``.

    >>> padding((64, 64, 128, 128)), padding((64, 128, 64, 64))
    (2.0, 1.0)
    >>> round(padding((128, 3, 128, 128)), 2)
    1.33
    """
    batch, features = shape[:2]

    def padded(lanes: int, sublanes: int) -> int:
        # Fewer than a tile's sublanes have tiles of 1, 2 or 4.
        height = min(SUBLANES, 1 << (sublanes - 1).bit_length())
        return ceil_div(lanes, LANES) * LANES * ceil_div(sublanes, height) * height

    best = min(padded(features, batch), padded(batch, features))
    return best / math.prod((batch, features))
