# SPDX-License-Identifier: Apache-2.0
"""What convolutions of one pixel read of wide images is written, if rows of these are summed."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.records import Phase, Work
from torchtpu_core.plan.written import written_results
from torchtpu_core.testing.recordings import op, recording

_IMAGE, _WEIGHT, _GRADIENT, _OF_WEIGHT = range(1, 5)


def _is_written(
    batch: int, width: int, wide: int, narrow: int, *, kernel: int = 1, groups: int = 1
) -> bool:
    """Whether the image is that a convolution reads for the gradient of its weight."""
    products = ((groups, batch * width * width, wide, narrow),)
    reads = (_GRADIENT, _IMAGE, _WEIGHT)
    name = "convolution_backward"
    ops = [
        op("relu", Work.ELEMENTWISE, (0,), (_IMAGE,)),
        op("sum", Work.MOVE, (0,), (_GRADIENT,)),
        op("randn", Work.ELEMENTWISE, (), (_WEIGHT,)),
        op(name, Work.MATMUL, reads, (_OF_WEIGHT,), Phase.BACKWARD, products=products),
    ]
    made = recording(ops, dict.fromkeys((_IMAGE, _GRADIENT), len(ops)))
    made.blocks[_IMAGE].shape = (batch, wide, width, width)
    made.blocks[_GRADIENT].shape = (batch, narrow, width, width)
    made.blocks[_WEIGHT].shape = (narrow, wide // groups, kernel, kernel)
    return _IMAGE in written_results(made.ops, made.blocks, {}, keeps_gelus=False).convolved


# Of XLA's schedules of MobileNetV2, EfficientNet, MobileViT and ResNet: batch, width, features.
@pytest.mark.parametrize("shape", [(16, 56, 144, 24), (8, 28, 480, 80), (32, 112, 32, 16)])
def test_wide_images_of_few_features_are_written(shape) -> None:
    assert _is_written(*shape)


@pytest.mark.parametrize(
    "shape", [(16, 28, 192, 32), (8, 64, 128, 64), (8, 64, 64, 256), (32, 56, 64, 64)]
)
def test_others_are_computed_again(shape) -> None:
    assert not _is_written(*shape)


def test_kernels_of_several_pixels_and_depthwise_ones_sum_over_the_batch() -> None:
    assert not _is_written(16, 56, 144, 24, kernel=3)
    assert not _is_written(16, 56, 144, 144, groups=144)
