# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of convolutions' weights that the optimizer changes in their gradients' order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Block, Category, Phase, Recording, Work
from torchtpu_core.plan.shared_places import in_own_places
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.plan.weight_updates import lives_of_updates
from torchtpu_core.testing.recordings import MIB, op, recording

BACK, STEP = Phase.BACKWARD, Phase.OPTIMIZER
WEIGHT, MOMENTUM, GRADIENT, NORM = 10, 11, 12, 13
TIED = (512, 256, 3, 3)
SIZE = 4 * math.prod(TIED)


def _network(
    shape: tuple[int, ...] = TIED,
    width: int = 4,
    groups: int = 1,
    clipped: bool = False,
    strided: bool = True,
) -> Recording:
    """The gradient of a convolution's weight, and a step with momentum."""
    products = ((groups, 2048, 9 * 256, 512), (groups, 512, 2048, 9 * 256))
    ops = [
        op("convolution_backward", Work.MATMUL, (0, 1, WEIGHT), (2, GRADIENT), BACK),
        *([op("norm", Work.ELEMENTWISE, (GRADIENT,), (NORM,), STEP)] if clipped else ()),
        op("mul_", Work.ELEMENTWISE, (MOMENTUM,), (MOMENTUM,), STEP),
        op("add_", Work.ELEMENTWISE, (MOMENTUM, GRADIENT), (MOMENTUM,), STEP),
        op("add_", Work.ELEMENTWISE, (WEIGHT, MOMENTUM), (WEIGHT,), STEP),
    ]
    ops[0].products, ops[0].strided = products, strided
    made = recording(ops, {2: 1, NORM: len(ops)})
    size = width * math.prod(shape)
    kinds = {
        WEIGHT: Category.PARAMETERS,
        MOMENTUM: Category.OPTIMIZER,
        GRADIENT: Category.GRADIENTS,
    }
    for storage, category in kinds.items():
        made.blocks[storage] = Block(size, -1, BACK, "", category=category, shape=shape)
    return made


def test_the_update_of_a_weight_is_written_once_more_until_after_the_backward_pass() -> None:
    made = _network()
    size = 4 * math.prod(TIED)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    found = sorted((one.size_bytes, one.first, one.end) for one in lives if one.size_bytes == size)
    # Gradient, momentum and weight.
    assert found == [(size, 0, 4), (size, 0, 4), (size, 0, 4)]


def test_so_is_that_of_a_weight_over_volumes_without_strides() -> None:
    made = _network((64, 64, 3, 3, 3), strided=False)
    assert len(list(lives_of_updates(made.ops, made.blocks))) == 3


def test_a_gradient_that_is_kept_is_moved_after_all_weights() -> None:
    made = _network()
    made.ops.append(op("add_", Work.ELEMENTWISE, (20,), (20,), STEP))
    ends = sorted(life.end for life in lives_of_updates(made.ops, made.blocks))
    assert ends == [4, 4, 5]


def test_what_waits_lies_where_a_later_change_of_another_weight_will_be() -> None:
    """libtpu: of the 12 values of three such weights with AdamW 5 are among the temporaries, the
    three gradients and two of the first weight; the others are where results will be.
    """
    made = Recording(blocks={2: Block(MIB, 0, BACK, "", died=1)})
    for weight in (100, 200, 300):
        reads, gradient = (0, 1, weight), weight + 1
        backward = op("convolution_backward", Work.MATMUL, reads, (2, gradient), BACK)
        made.ops.append(replace(backward, products=((1, 2048, 9 * 256, 512),), strided=True))
        made.blocks[gradient] = Block(SIZE, 0, BACK, "", category=Category.GRADIENTS, shape=TIED)
        for state in (weight, weight + 2, weight + 3):
            made.blocks[state] = Block(SIZE, -1, STEP, "", category=Category.OPTIMIZER, shape=TIED)
    for weight in (300, 200, 100):
        for state in (weight + 2, weight + 3, weight):
            reads = (state, weight + 1)
            made.ops.append(op("add_", Work.ELEMENTWISE, reads, (state,), STEP))
    found = lifetimes_of(made.ops, made.blocks, 0, Vmem(0))
    own = in_own_places(found.lives, found.places)
    left = [life for life in own if life.size_bytes == SIZE]
    assert sum(life.size_bytes == SIZE for life in found.lives) == 12
    assert {life.storage for life in left if life.end == len(made.ops)} == {101, 201, 301}
    assert sum(life.end < len(made.ops) for life in left) <= 2


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (640, 320, 3, 3)},  # 320 features of the image waste lanes
        {"shape": (64, 128, 3, 3)},
        {"shape": (512, 256, 1, 1)},
        {"width": 2},
        {"groups": 4},
        {"clipped": True},
        {"strided": False},  # their gradients are made in their order
    ],
)
def test_other_weights_are_changed_where_they_are(other) -> None:
    made = _network(**other)
    assert not list(lives_of_updates(made.ops, made.blocks))
