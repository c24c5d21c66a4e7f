# SPDX-License-Identifier: Apache-2.0
"""Logits that the script keeps, which a TPU has in the order of their product, too."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording


@pytest.mark.parametrize(
    ("shape", "before", "copied"),
    [
        ((8, 512, 8000), "mm", True),
        ((8, 512, 8192), "mm", False),  # words fill lanes
        ((8, 500, 8000), "mm", False),  # tokens fill none either
        ((4096, 8000), "mm", False),  # lie as the product does
        ((8, 512, 8000), "cumsum", False),  # no product's
    ],
)
def test_kept_logits_are_copied_from_the_order_of_their_product(shape, before, copied) -> None:
    work = Work.MATMUL if before == "mm" else Work.MOVE
    ops = [
        op(before, work, (1,), (2,), products=((1, 4096, 8000, 512),) if before == "mm" else ()),
        op("_to_copy", Work.ELEMENTWISE, (2,), (3,)),
        op("sum", Work.MOVE, (3,), (4,)),
        op("sin", Work.MOVE, (4,), (5,)),
    ]
    made = recording(ops, {2: 2, 4: 4})  # 3 and 5 are there after the step
    made.blocks[2].shape, made.blocks[3].shape = (4096, 8000), shape
    size = made.blocks[3].size_bytes
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    found = [(life.first, life.end) for life in lives if life.size_bytes == size]
    assert ((0, 3) in found) == copied


@pytest.mark.parametrize(("small", "times"), [(True, 1), (False, 2)])
def test_product_is_written_with_the_bias_that_is_added_in_another_shape(small, times) -> None:
    ops = [
        op("mm", Work.MATMUL, (1,), (2,), products=((1, 4096, 8000, 512),)),
        op("add", Work.ELEMENTWISE, (2, 9), (3,)),
        *(op("softmax", Work.ELEMENTWISE, (3,), (n,)) for n in (4, 5)),
        op("sin", Work.MOVE, (4, 5), (6,)),
    ]
    ops[1].read_bytes = (MIB, 1000 if small else MIB)
    made = recording(ops, dict.fromkeys((2, 3, 4, 5), 4))
    made.blocks[2].shape, made.blocks[3].shape = (4096, 8000), (8, 512, 8000)
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    assert len([life for life in lives if life.storage in (2, 3)]) == times
