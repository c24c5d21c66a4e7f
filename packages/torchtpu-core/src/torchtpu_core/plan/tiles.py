# SPDX-License-Identifier: Apache-2.0
"""Bytes that images take in HBM, whose features and batch are padded to the tiles of a TPU.

XLA's TPU compiler keeps what convolutions read and write with features or batch along the 128
lanes, and the other along the 8 sublanes, whichever wastes less; 64 features in a batch of 64
take twice their bytes. Other tensors keep their order, and are padded too little to matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.records import Block, Op
from torchtpu_core.simulator.rates import LANES, SUBLANES
from torchtpu_core.units import ceil_div

#: With fewer features than this, as in a picture, the order is left as it is.
FEWEST_FEATURES = 8


def image_sizes(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, int]:
    """Bytes of the padded storages, by storage, of a step that has convolutions."""
    if not any(op.name.startswith("convolution") for op in ops):
        return {}
    written = {storage for op in ops for storage in op.writes}
    sizes = {}
    for storage in written:
        block = blocks[storage]
        if len(block.shape) in (4, 5) and block.category is None:
            sizes[storage] = round(block.size_bytes * padding(block.shape))
    return sizes


def padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of a batch of feature maps ``[N, C, ...]``.

    >>> padding((64, 64, 128, 128)), padding((64, 128, 64, 64)), padding((64, 3, 128, 128))
    (2.0, 1.0, 1.0)
    """
    batch, features = shape[:2]
    if features < FEWEST_FEATURES:
        return 1.0

    def padded(lanes: int, sublanes: int) -> int:
        return ceil_div(lanes, LANES) * LANES * ceil_div(sublanes, SUBLANES) * SUBLANES

    best = min(padded(features, batch), padded(batch, features))
    return best / math.prod((batch, features))
