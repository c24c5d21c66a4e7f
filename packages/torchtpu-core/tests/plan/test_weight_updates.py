# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of convolutions' weights that the optimizer changes in their gradients' order."""

from __future__ import annotations

import math

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Block, Category, Phase, Recording, Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.plan.weight_updates import lives_of_updates
from torchtpu_core.testing.recordings import op, recording

BACK, STEP = Phase.BACKWARD, Phase.OPTIMIZER
WEIGHT, MOMENTUM, GRADIENT, NORM = 10, 11, 12, 13
TIED = (512, 256, 3, 3)


def _network(
    shape: tuple[int, ...] = TIED, width: int = 4, groups: int = 1, clipped: bool = False
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
    ops[0].products = products
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
    assert found == [(size, 0, 3), (size, 0, 4), (size, 0, 4)]  # gradient, momentum and weight


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (640, 320, 3, 3)},  # 320 features of the image waste lanes
        {"shape": (64, 128, 3, 3)},
        {"shape": (512, 256, 1, 1)},
        {"width": 2},
        {"groups": 4},
        {"clipped": True},
    ],
)
def test_other_weights_are_changed_where_they_are(other) -> None:
    made = _network(**other)
    assert not list(lives_of_updates(made.ops, made.blocks))
