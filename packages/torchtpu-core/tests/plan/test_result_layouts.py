# SPDX-License-Identifier: Apache-2.0
"""Logits that the script keeps, which a TPU has in the order of their product, too."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import op, recording


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
