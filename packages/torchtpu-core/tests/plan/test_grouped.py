# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of convolutions of several groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torchtpu_core.plan.grouped import lives_in_groups, merged_products, operands_of_groups
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Block, Category, Phase, Recording, Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import op, recording

IMAGE = (8, 256, 16, 16)
BYTES = 8 * 256 * 16 * 16 * 2
BACK = Phase.BACKWARD


WEIGHT = 8


def _convolved(groups: int, features: int = 256, taps: int = 4096) -> Recording:
    """A ReLU between two convolutions, the second of groups, and their gradients.

    The ReLU's storage has `features`; the second convolution reads 256 of them. Its weight is
    larger than the image unless it has few taps: narrow groups are not merged then.
    """
    grouped = ((groups, 2048, 9 * 256 // groups, 256 // groups),)
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,), products=((1, 2048, 256, 256),)),
        op("relu", Work.ELEMENTWISE, (1,), (2,)),
        op("convolution", Work.MATMUL, (2, WEIGHT), (3,), products=grouped, dtype="bf16"),
        op("convolution", Work.MATMUL, (3,), (4,), products=((1, 2048, 256, 256),)),
        op("convolution_backward", Work.MATMUL, (4, 2, WEIGHT), (5, 6), BACK, products=grouped),
        op("convolution_backward", Work.MATMUL, (5, 0), (7,), BACK, products=((1, 256, 9, 9),)),
    ]
    made = recording(ops, dict.fromkeys(range(6), len(ops)), size=BYTES)
    for storage in range(1, 6):
        made.blocks[storage].shape = IMAGE
    made.blocks[2].shape = (IMAGE[0], features, *IMAGE[2:])
    kept = Block(1, 0, Phase.FORWARD, "", category=Category.PARAMETERS)
    made.blocks[WEIGHT] = replace(kept, shape=(256, 256 // groups, taps))
    return made


@pytest.mark.parametrize(("groups", "kept"), [(32, {2: 1}), (16, {2: 1}), (4, {2: 1}), (2, {2: 1})])
def test_narrow_groups_of_images_are_merged(groups, kept) -> None:
    made = _convolved(groups, taps=9)
    assert operands_of_groups(made.ops, made.blocks) == kept
    assert list(merged_products(made.ops[2])) == [(2, 2048, 9 * 128, 128)]


def test_groups_that_merge_to_one_are_none() -> None:
    made = _convolved(32)
    made.ops[2].products = made.ops[4].products = ((32, 2048, 36, 4),)
    for storage in range(1, 6):
        made.blocks[storage].shape = (8, 128, 16, 16)
    made.blocks[WEIGHT].shape = (128, 4, 3, 3)
    assert operands_of_groups(made.ops, made.blocks) == {}
    assert list(merged_products(made.ops[2])) == [(1, 2048, 9 * 128, 128)]


@pytest.mark.parametrize(
    ("groups", "padding"),
    [(16, 8), (4, 2), (2, 1)],  # groups of 16, 64 and 128 features, along the lanes
)
def test_operands_of_groups_lie_by_batch_and_features_of_a_group(groups, padding) -> None:
    made = _convolved(groups)
    assert operands_of_groups(made.ops, made.blocks) == {2: padding}
    lives = {one.storage: one for one in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}
    assert lives[2].size_bytes == padding * BYTES
    assert (lives[2].first, lives[2].end) == (1, 5)  # until the gradient of the weight


def test_depthwise_convolutions_of_a_part_of_the_features_have_no_groups() -> None:
    made = _convolved(256, features=512)
    assert operands_of_groups(made.ops, made.blocks) == {}


@pytest.mark.parametrize("groups", [1, 256])
def test_other_convolutions_compute_a_relu_within_them(groups) -> None:
    made = _convolved(groups)
    assert lives_in_groups(made.ops, made.blocks) == []
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert 2 not in {one.storage for one in lives}


def test_sums_of_groups_are_rounded_before_they_are_kept() -> None:
    made = _convolved(16)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert max(one.size_bytes for one in lives if one.storage == 3 and one.end > 3) == BYTES


def test_sums_and_gradients_of_groups_have_their_order_for_a_moment() -> None:
    made = _convolved(16)
    sums, gradients = lives_in_groups(made.ops, made.blocks)
    assert (sums.first, sums.end, sums.size_bytes) == (2, 3, 8 * 2 * BYTES)
    # The gradient that it is given and the one that it makes.
    assert (gradients.first, gradients.end, gradients.size_bytes) == (4, 5, 2 * 8 * BYTES)


def test_the_gradient_of_a_weight_alone_moves_what_it_is_given() -> None:
    made = _convolved(16)
    made.blocks[5].shape = (256, 16, 3, 3)
    assert lives_in_groups(made.ops, made.blocks)[1].size_bytes == 8 * BYTES
