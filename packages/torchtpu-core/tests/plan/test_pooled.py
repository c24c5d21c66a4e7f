# SPDX-License-Identifier: Apache-2.0
"""What takes HBM of images that a step pools."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Phase, Recording, Work
from torchtpu_core.plan.vmem import NO_VMEM
from torchtpu_core.testing.recordings import op, recording

_GIVEN, _WEIGHT, _MADE, _IMAGE, _POOLED, _GRADIENT, _BACK, _OF_WEIGHT = range(1, 9)


def _step(pool: str) -> Recording:
    """A convolution, a ReLU and a pool, and their gradients; `_BACK` is that of the pool."""
    product = {"products": ((1, 4096, 27, 64),)}
    ops = [
        op("convolution", Work.MATMUL, (_GIVEN, _WEIGHT), (_MADE,), **product),
        op("relu", Work.ELEMENTWISE, (_MADE,), (_IMAGE,)),
        op(pool, Work.ELEMENTWISE, (_IMAGE,), (_POOLED,)),
        op("mm", Work.MATMUL, (_POOLED,), (_GRADIENT,), Phase.BACKWARD),
        op(f"{pool}_backward", Work.MOVE, (_GRADIENT, _IMAGE), (_BACK,), Phase.BACKWARD),
        op(
            "convolution_backward",
            Work.MATMUL,
            (_BACK, _GIVEN, _WEIGHT),
            (_OF_WEIGHT,),
            Phase.BACKWARD,
            **product,
        ),
    ]
    return recording(ops, dict.fromkeys(range(_MADE, _OF_WEIGHT), len(ops)))


def _lives(pool: str) -> dict[int, tuple[int, int]]:
    made = _step(pool)
    found = lifetimes_of(made.ops, made.blocks, 0, NO_VMEM)
    return {life.storage: (life.first, life.end) for life in found.lives}


def test_image_is_written_once_more_for_the_gradient_of_a_max_pool() -> None:
    lives = _lives("max_pool2d_with_indices")
    assert lives[_IMAGE] == (4, 5)
    assert lives[_MADE] == (0, 5)


@pytest.mark.parametrize(("stride", "kept"), [(1, True), (2, False)])
def test_averages_and_gradients_of_overlapping_windows_are_written(stride: int, kept: bool) -> None:
    made = _step("avg_pool2d")
    for one in made.ops[2], made.ops[4]:
        one.read_bytes = tuple(1024 if s in (_POOLED, _GRADIENT) else 4096 for s in one.reads)
    made.ops[4].write_bytes = (1024 if stride == 1 else 4096,)
    made.ops[4].work = Work.ELEMENTWISE
    found = lifetimes_of(made.ops, made.blocks, 0, NO_VMEM)
    storages = {life.storage for life in found.lives}
    assert _POOLED in storages
    assert (_BACK in storages) == kept
