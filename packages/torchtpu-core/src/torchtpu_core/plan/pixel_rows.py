# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one pixel over wide images, whose weights' gradients sum over rows of pixels.

XLA's TPU compiler sums a gradient of a weight over what fills the matrix unit best: over the batch
for each pixel, or over a row of pixels for each of its rows and images, where the batch is much
smaller than a row and no features fill the lanes. The image then needs another order, and is
written for it: what it is made of is not computed again. Of 110 such gradients in MobileNetV2,
EfficientNet, MobileViT and ResNet, rows of 3.5 times the batch and more were summed so, of twice
the batch and less not, and none with 128 features or a multiple on either side.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.plan.records import Block, Op
from torchtpu_core.simulator.rates import LANES

#: Pixels of a row for each image of the batch, above which it is summed over.
_WIDE = 2
_RANK = 4


def operands_of_rows(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Images that such gradients read.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    found = set()
    for op in ops:
        ends = op.reads[:3]
        if op.name != "convolution_backward" or not op.products or op.products[0][0] > 1:
            continue
        if len(ends) < 3 or any(s not in blocks or len(blocks[s].shape) != _RANK for s in ends):
            continue
        made, image, weight = (blocks[s].shape for s in ends)
        narrow = all(features % LANES for features in weight[:2])
        of_one_pixel = tuple(weight[2:]) == (1, 1) and made[2:] == image[2:]
        if narrow and of_one_pixel and image[-1] > _WIDE * image[0]:
            found.add(ends[1])
    return found
