# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of convolutions of few images, which XLA splits into more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Phase, Recording, Work
from torchtpu_core.plan.split_batches import lives_in_parts
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import op, recording

BACK = Phase.BACKWARD


def _convolved(images: int, kernel: int = 3) -> Recording:
    """A ReLU between two convolutions, and their gradients."""
    products = ((1, 2048, 9 * 128, 128),)
    ops = [
        op("convolution", Work.MATMUL, (0, 10), (1,), products=products),
        op("relu", Work.ELEMENTWISE, (1,), (2,)),
        op("convolution", Work.MATMUL, (2, 11), (3,), products=products),
        op("convolution_backward", Work.MATMUL, (3, 2, 11), (4, 12), BACK, products=products),
        op("convolution_backward", Work.MATMUL, (4, 0, 10), (13,), BACK, products=products),
    ]
    given = [op("randn", Work.ELEMENTWISE, (), (one,)) for one in (0, 10, 11)]
    size = images * 128 * 64 * 64 * 4
    made = recording(given + ops, dict.fromkeys((1, 2, 3, 4), len(ops)), size=size)
    made.ops = ops
    for storage in (0, 1, 2, 3, 4):
        made.blocks[storage].shape = (images, 128, 64, 64)
    for storage in (10, 11, 12, 13):
        made.blocks[storage].shape = (128, 128, kernel, kernel)
    for block in made.blocks.values():
        block.born -= len(given)
    return made


def _size(images: int) -> int:
    """Bytes with the row that parts of 8 columns share with the next."""
    return images * 128 * 64 * 64 * 4 * 9 // 8


@pytest.mark.parametrize("images", [1, 4])
def test_operands_of_few_images_are_written_twice_until_the_gradient(images) -> None:
    made = _convolved(images)
    lives = [
        (one.size_bytes, one.end)
        for one in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
        if one.storage == 2
    ]
    whole = (_size(images), 4)
    assert sorted(lives) == [whole, whole, (3 * _size(images), 4)]  # and once for each column


@pytest.mark.parametrize(("images", "kernel"), [(8, 3), (4, 1)])
def test_other_batches_are_not_split(images, kernel) -> None:
    made = _convolved(images, kernel)
    assert lives_in_parts(made.ops, made.blocks, lambda storage: 1) == []
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert 2 not in {one.storage for one in lives}


def test_gradients_of_few_images_are_written_twice() -> None:
    made = _convolved(2)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    gradients = [one.size_bytes for one in lives if one.storage == 4 and one.end == 5]
    assert gradients == [_size(2)] * 2


def _normed(images: int) -> Recording:
    """A group norm of a convolution's result before another convolution, and their gradients."""
    products = ((1, 2048, 9 * 32, 32),)
    ops = [
        op("convolution", Work.MATMUL, (0, 10), (1,), products=products),
        op("_to_copy", Work.MOVE, (1,), (2,)),
        op("native_group_norm", Work.ELEMENTWISE, (2,), (3, 14, 15)),
        op("convolution", Work.MATMUL, (3, 11), (4,), products=products),
        op("convolution_backward", Work.MATMUL, (4, 3, 11), (5, 12), BACK, products=products),
        op("native_group_norm_backward", Work.ELEMENTWISE, (5, 2, 14, 15), (6,), BACK),
        op("convolution_backward", Work.MATMUL, (6, 0, 10), (13,), BACK, products=products),
    ]
    given = [op("randn", Work.ELEMENTWISE, (), (one,)) for one in (0, 10, 11)]
    size = images * 32 * 64 * 64 * 4
    made = recording(given + ops, dict.fromkeys((1, 2, 3, 4, 5, 6, 14, 15), len(ops)), size=size)
    made.ops = ops
    for storage in range(7):
        made.blocks[storage].shape = (images, 32, 64, 64)
    for storage in (10, 11, 12, 13):
        made.blocks[storage].shape = (32, 32, 3, 3)
    for storage in (14, 15):
        made.blocks[storage].shape, made.blocks[storage].size_bytes = (images, 8), images * 32
    for block in made.blocks.values():
        block.born -= len(given)
    return made


def test_group_norms_of_few_images_keep_these_whole() -> None:
    made = _normed(2)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    kept = [(one.storage, one.size_bytes) for one in lives if one.first < 4 and one.end > 5]
    size = 2 * 32 * 64 * 64 * 4
    large = [one for one in kept if one[0] and one[1] > size // 2]  # but for the picture
    assert large == [(2, 2 * size)]  # rows of 64 pixels in 128 lanes
    parts = lives_in_parts(made.ops, made.blocks, lambda storage: 1)
    operands = sorted((one.first, one.end) for one in parts if one.storage == 3)
    assert operands == [(3, 4), (4, 5)]  # made for each convolution, and for no column


def test_what_is_cast_for_such_a_norm_is_kept_as_it_was() -> None:
    made = _normed(2)
    size = 2 * 32 * 64 * 64 * 2
    made.blocks[1].size_bytes = size
    made.ops[1] = replace(made.ops[1], read_bytes=(size,), write_bytes=(2 * size,))
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    kept = [(one.storage, one.size_bytes) for one in lives if one.first < 4 and one.end > 5]
    assert [one for one in kept if one[0] and one[1] >= size] == [(1, 2 * size)]
