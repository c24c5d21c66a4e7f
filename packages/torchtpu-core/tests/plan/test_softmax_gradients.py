# SPDX-License-Identifier: Apache-2.0
"""What takes HBM while the gradient of a softmax is computed, as of attention written out.

Figures are those of libtpu's buffers for two such layers on v5e.
"""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Op, Phase, Recording, Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

BACK = Phase.BACKWARD
QUERIES, KEYS, VALUES, WHOLE = 1, 2, 3, 4  # from before the step


def _attention(rows: int, length: int, dtype: str) -> Recording:
    """Attention of heads of 32 features, its joined heads in a product, and the gradients."""
    width = 4 if dtype == "f32" else 2
    scores, values = (rows, length, length), (rows, length, 32)
    many, few = ((rows, length, 32, length),), ((rows, length, length, 32),)
    whole = ((1, rows * length // 8, 256, 256),)

    def product(reads: tuple[int, int], made: int, sizes: tuple, phase=Phase.FORWARD) -> Op:
        return op("bmm", Work.MATMUL, reads, (made,), phase, products=sizes, dtype=dtype)

    def fused(name: str, reads: tuple[int, ...], made: int, phase=Phase.FORWARD) -> Op:
        return op(name, Work.ELEMENTWISE, reads, (made,), phase, dtype=dtype)

    ops = [
        product((QUERIES, KEYS), 10, many),
        fused("mul", (10,), 11),
        fused("_softmax", (11,), 12),
        product((12, VALUES), 13, few),
        op("clone", Work.MOVE, (13,), (14,)),
        product((14, WHOLE), 15, whole),
        product((14, 15), 16, whole, BACK),
        product((12, 15), 17, few, BACK),
        product((15, VALUES), 18, many, BACK),
        fused("_softmax_backward_data", (18, 12), 19, BACK),
        fused("mul", (19,), 20, BACK),
        product((20, KEYS), 21, few, BACK),
        product((QUERIES, 20), 22, few, BACK),
    ]
    made = recording(ops, dict.fromkeys((10, 11, 12, 13, 14, 18, 19, 20), len(ops)))
    joined = (rows // 8, length, 8, 32)
    batched = (rows // 8, 8, length, length)
    shapes = {10: scores, 18: scores, 13: values, 14: joined}
    shapes.update(dict.fromkeys((11, 12, 19, 20), batched))
    for storage, shape in shapes.items():
        count = rows * length * (32 if storage in (13, 14) else length)
        made.blocks[storage].shape, made.blocks[storage].size_bytes = shape, width * count
    return made


def _at(made: Recording, index: int) -> dict[int, int]:
    lives = lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives
    return {one.storage: one.size_bytes for one in lives if one.first <= index < one.end}


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "size"),
    [
        (2048, 160, "f32", 320 * MIB),  # f32[2048,160,160], padded to 256 lanes
        (4096, 96, "f32", 192 * MIB),  # f32[4096,96,96]
        (128, 512, "f32", 128 * MIB),  # f32[128,512,512]
        (8192, 64, "bf16", 128 * MIB),  # bf16[8192,64,64]: the product is rounded, too
    ],
)
def test_gradient_lies_beside_the_product_and_the_scores(rows, length, dtype, size) -> None:
    made = _attention(rows, length, dtype)
    sizes = _at(made, 10)
    scores = next(storage for storage in (10, 11) if storage in sizes)
    if length in (96, 64):  # matrices under 128 a side take whole tiles in the plan
        assert [sizes[storage] for storage in (scores, 18, 20)] == [size] * 3
    else:
        assert {scores, 18, 20} <= sizes.keys()


def test_joined_heads_are_kept_and_not_the_padded_product_that_they_are_made_of() -> None:
    """libtpu keeps f32[49152,256] of 48 MiB, and not f32[4096,96,32] of 64 MiB."""
    sizes = _at(_attention(4096, 96, "f32"), 5)
    assert 13 not in sizes
    assert sizes[14] == 48 * MIB
