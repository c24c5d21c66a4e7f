# SPDX-License-Identifier: Apache-2.0
"""Images that a step is given wait in the order of convolutions for the gradient of the weight."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Phase, Work
from torchtpu_core.plan.vmem import NO_VMEM
from torchtpu_core.testing.recordings import op, recording

_IMAGE, _WEIGHT, _MADE, _GRADIENT, _OF_WEIGHT = 1, 2, 3, 4, 5


def _copies(name: str, shape: tuple[int, ...]) -> list[tuple[float, int, int]]:
    ops = [
        op(name, Work.MATMUL, (_IMAGE, _WEIGHT), (_MADE,)),
        op("sum", Work.MOVE, (_MADE,), (_GRADIENT,)),
        op(
            f"{name}_backward",
            Work.MATMUL,
            (_GRADIENT, _IMAGE, _WEIGHT),
            (_OF_WEIGHT,),
            Phase.BACKWARD,
        ),
    ]
    given = [op("randn", Work.ELEMENTWISE, (), (one,)) for one in (_IMAGE, _WEIGHT)]
    made = recording(given + ops, {_MADE: 4, _GRADIENT: 5})
    made.ops = ops
    for block in made.blocks.values():
        block.born -= len(given)
    made.blocks[_IMAGE].shape = shape
    found = lifetimes_of(made.ops, made.blocks, 0, NO_VMEM)
    size = made.blocks[_IMAGE].size_bytes
    return [
        (round(one.size_bytes / size, 2), one.first, one.end)
        for one in found.lives
        if one.storage == _IMAGE
    ]


def test_pictures_are_copied_once_with_batch_and_channels_in_whole_tiles() -> None:
    # 32 of 128 lanes, and 3 of 4 sublanes are filled.
    assert _copies("convolution", (32, 3, 224, 224)) == [(5.33, 0, 3)]
    assert _copies("convolution", (128, 64, 56, 56)) == [(1, 0, 3)]


@pytest.mark.parametrize(
    ("name", "shape"), [("linear", (32, 3, 224, 224)), ("convolution", (32, 128, 80))]
)
def test_other_operands_are_read_as_they_lie(name, shape) -> None:
    assert _copies(name, shape) == []
