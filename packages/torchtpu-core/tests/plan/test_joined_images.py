# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of few images that are joined for a convolution, as a U-Net's are."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.joined_images import joined_paddings
from torchtpu_core.plan.records import Op, Phase, Recording, Work
from torchtpu_core.plan.split_batches import lives_in_parts
from torchtpu_core.testing.recordings import op, recording

SIDE = 256
FIRST, PASSED, POOLED, DEEP, LARGER, JOINED, LAST = range(1, 8)
WEIGHT = 10


def _convolution(reads: int, writes: int, dtype: str) -> Op:
    products = ((1, 2048, 9 * 64, 64),)
    return op(
        "convolution", Work.MATMUL, (reads, WEIGHT), (writes,), products=products, dtype=dtype
    )


def _network(dtype: str = "bf16", images: int = 4, kernel: int = 3, between: str = "") -> Recording:
    """A U-Net of one step down, with an operator between what it joins and the convolution."""
    joined = JOINED + 1 if between else JOINED
    last = joined + 1
    ops = [
        _convolution(0, FIRST, dtype),
        op("relu", Work.ELEMENTWISE, (FIRST,), (PASSED,)),
        op("max_pool2d_with_indices", Work.ELEMENTWISE, (PASSED,), (POOLED,)),
        _convolution(POOLED, DEEP, dtype),
        op("upsample_nearest2d", Work.ELEMENTWISE, (DEEP,), (LARGER,)),
        op("cat", Work.MOVE, (PASSED, LARGER), (JOINED,)),
        *([op(between, Work.ELEMENTWISE, (JOINED,), (joined,))] if between else ()),
        _convolution(joined, last, dtype),
    ]
    given = [op("randn", Work.ELEMENTWISE, (), (one,)) for one in (0, WEIGHT)]
    made = recording(given + ops, dict.fromkeys(range(1, last + 1), len(ops)))
    made.ops = ops
    for storage in range(last + 1):
        side = SIDE // 2 if storage in (POOLED, DEEP) else SIDE
        made.blocks[storage].shape = (images, 64, side, side)
    made.blocks[JOINED].shape = made.blocks[joined].shape = (images, 128, SIDE, SIDE)
    made.blocks[WEIGHT].shape = (64, 64, kernel, kernel)
    return made


def test_rows_of_pixels_of_joined_images_lie_along_the_lanes() -> None:
    made = _network()
    found = joined_paddings(made.ops, made.blocks)
    assert found == dict.fromkeys((FIRST, PASSED, LARGER, JOINED, LAST), 1.0)


def test_what_is_joined_of_pooled_images_is_of_the_joined_ones_order() -> None:
    made = _network()
    made.ops.append(op("cat", Work.MOVE, (POOLED, DEEP), (20,)))
    made.ops.append(_convolution(20, 21, "bf16"))
    for storage in (20, 21):
        made.blocks[storage] = made.blocks[DEEP]
    found = joined_paddings(made.ops, made.blocks)
    assert {20, 21} <= found.keys()
    assert not {POOLED, DEEP} & found.keys()


@pytest.mark.parametrize(
    "other", [{"dtype": "f32"}, {"images": 8}, {"kernel": 1}, {"between": "native_batch_norm"}]
)
def test_other_images_have_features_along_the_lanes(other) -> None:
    made = _network(**other)
    assert joined_paddings(made.ops, made.blocks) == {}


@pytest.mark.parametrize(("operand", "repeated"), [(PASSED, True), (JOINED, False)])
def test_joined_images_are_not_written_for_each_column_of_a_kernel(operand, repeated) -> None:
    made = _network()
    gradient = _convolution(LAST, 20, "bf16")
    gradient.name, gradient.reads = "convolution_backward", (LAST, operand, WEIGHT)
    gradient.phase = Phase.BACKWARD
    made.ops.append(gradient)
    lives = lives_in_parts(made.ops, made.blocks, lambda storage: made.blocks[storage].size_bytes)
    sizes = [life.size_bytes for life in lives if life.storage == operand]
    # 64 features take 128 lanes, and parts of 32 columns one that they share with the next.
    widened = round(made.blocks[operand].size_bytes * 2 * 33 / 32) * 3
    assert (widened in sizes) == repeated
    assert max(sizes) == (widened if repeated else made.blocks[operand].size_bytes)
