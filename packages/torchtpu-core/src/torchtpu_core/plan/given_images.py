# SPDX-License-Identifier: Apache-2.0
"""Images that a step is given, which XLA's TPU compiler copies to the order of convolutions.

They come with pixels along lanes; a convolution wants features and batch there. The gradient of its
weight reads the same copy: pictures of three channels wait through the whole step, their batch
filled up to 128.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torchtpu_core.plan.paddings import image_padding
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life

#: Dimensions of a batch of images.
_RANK = 4


def lives_of_given_images(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> list[Life]:
    """Copies of such images.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
    """
    read: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        if op.name.startswith("convolution"):
            operand = op.reads[1:2] if op.name.endswith("backward") else op.reads[:1]
            for storage in operand:
                if storage in uses.fixed and len(blocks[storage].shape) >= _RANK:
                    read[storage].append(index)
    lives = []
    for storage, points in read.items():
        block = blocks[storage]
        size = round(block.size_bytes * image_padding(block.shape))
        lives.append(Life(storage, size, tuple(points), points[-1] + 1))
    return lives
