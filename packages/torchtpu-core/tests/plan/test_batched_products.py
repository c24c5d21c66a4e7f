# SPDX-License-Identifier: Apache-2.0
"""What batched products and softmaxes, as of attention that is written out, keep in HBM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torchtpu_core.plan.broadcasts import broadcast_lives, broadcasts_of
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.records import Category, Phase, Work
from torchtpu_core.plan.uses import uses_of
from torchtpu_core.plan.vmem import Life, Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

BACK = Phase.BACKWARD


def _mm(read: int, written: int):
    return op("mm", Work.MATMUL, (read,), (written,), products=((1, 4096, 4096, 4096),))


@pytest.mark.parametrize(("width", "alive"), [(64, 2 * MIB), (128, 5 * MIB)])
def test_long_narrow_matrices_that_are_moved_for_batched_products_are_kept(width, alive) -> None:
    ops = [
        _mm(1, 2),
        op("clone", Work.MOVE, (2,), (3,)),
        _mm(1, 4),
        op("bmm", Work.MATMUL, (3,), (5,), products=((8, 1024, width, 1024),)),
    ]
    found = recording(ops, dict.fromkeys((2, 3, 4), 4))
    found.blocks[2].size_bytes = 4 * MIB
    memory = memory_of(found.ops, found.blocks, (0, 4), 1 << 40, Vmem(0))
    # 5 is there throughout; beside it the moved part, or what it is a part of.
    assert sum(memory.curves[c][2] for c in Category) - memory.holes_bytes == alive


@pytest.mark.parametrize(
    ("made", "size"),
    # Scaled scores are as large as the product; converted logits twice as large.
    [("mul", MIB), ("_to_copy", 2 * MIB)],
)
def test_softmax_is_computed_again_from_the_smallest_that_it_is_made_of(made, size) -> None:
    ops = [
        _mm(1, 2),
        op(made, Work.ELEMENTWISE, (2,), (3,), write_bytes=(size,)),
        op("_softmax", Work.ELEMENTWISE, (3,), (4,), write_bytes=(2 * MIB,)),
        _mm(4, 5),
        *(_mm(1, 10 + i) for i in range(30)),
        op("_softmax_backward_data", Work.ELEMENTWISE, (5, 4), (6,), BACK),
    ]
    found = recording(ops, dict.fromkeys((2, 3, 4), 35))
    found.blocks[3].size_bytes, found.blocks[4].size_bytes = size, 2 * MIB
    memory = memory_of(found.ops, found.blocks, (0, len(ops)), 1 << 40, Vmem(0))
    results = 32  # 5, 6 and those of the other products are there throughout
    alive = sum(memory.curves[category][20] for category in Category) - memory.holes_bytes
    assert alive == (results + 1) * MIB


@pytest.mark.parametrize(
    ("bias", "scores", "written"),
    [
        ((4, 256, 256), (2, 4, 256, 256), True),
        ((256, 256), (2, 4, 256, 256), False),  # a broadcast along one dimension
        ((2, 4, 256, 256), (2, 4, 256, 256), False),  # none
        ((4, 256, 256), (8, 256, 256), False),  # in the product's own shape
    ],
)
def test_bias_of_batched_scores_is_written_for_each_of_the_batch(bias, scores, written) -> None:
    ops = [
        op("clone", Work.MOVE, (1,), (9,)),
        op("bmm", Work.MATMUL, (1,), (2,), products=((8, 256, 128, 256),)),
        op("add", Work.ELEMENTWISE, (2, 9), (3,)),
        op("bmm", Work.MATMUL, (3,), (4,), products=((8, 256, 256, 128),)),
    ]
    made = recording(ops, dict.fromkeys((2, 3, 9), 4))
    for storage, shape in {2: (8, 256, 256), 3: scores, 9: bias}.items():
        made.blocks[storage].shape = shape
    found = broadcast_lives(broadcasts_of(made.ops, made.blocks, uses_of(made.ops, made.blocks, 0)))
    # Float32 sums of eight products, while the first one runs.
    expected = [Life(3, 8 * 256 * 256 * 4, (1,), 2)] if written else []
    assert found == expected
    plain, counted = (
        sum(life.size_bytes for life in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives)
        for made in (made, _without(made, 9))
    )
    assert (plain > counted + MIB) == written


def _without(made, storage):
    """A recording in which a storage is a number."""
    blocks = {**made.blocks, storage: replace(made.blocks[storage], shape=())}
    return replace(made, blocks=blocks)


@pytest.mark.parametrize(("part", "kept"), [(MIB // 4, 2 * MIB), (MIB, MIB)])
def test_log_softmax_is_kept_where_a_part_of_its_gradient_is_read(part, kept) -> None:
    ops = [
        _mm(1, 2),
        op("_log_softmax", Work.ELEMENTWISE, (2,), (3,)),
        op("nll_loss_forward", Work.ELEMENTWISE, (3,), (4,)),
        *(_mm(1, 10 + i) for i in range(30)),
        op("_log_softmax_backward_data", Work.ELEMENTWISE, (3,), (5,), BACK),
        op("clone", Work.MOVE, (5,), (6,), BACK, read_bytes=(part,), write_bytes=(part,)),
        _mm(6, 7),
    ]
    found = recording(ops, dict.fromkeys((2, 3, 5, 6), 36))
    found.blocks[3].size_bytes = 2 * MIB
    memory = memory_of(found.ops, found.blocks, (0, len(ops)), 1 << 40, Vmem(0))
    results = 32  # 4, 7 and those of the other products are there throughout
    alive = sum(memory.curves[category][20] for category in Category) - memory.holes_bytes
    assert alive == results * MIB + kept


@pytest.mark.parametrize(
    ("rounded", "also_read", "size"),
    [(MIB // 2, False, MIB // 2), (MIB, False, MIB), (MIB // 2, True, MIB)],
)
def test_product_is_kept_as_its_elementwise_end_rounds_it(rounded, also_read, size) -> None:
    ops = [
        op("_int_mm", Work.MATMUL, (1,), (2,), products=((1, 512, 512, 512),), dtype="int8"),
        op("mul", Work.ELEMENTWISE, (2,), (3,)),
        op("_to_copy", Work.MOVE, (3,), (4,), write_bytes=(rounded,)),
        _mm(1, 5),
        _mm(4, 6),
        op("max", Work.MOVE, (2,) if also_read else (1,), (7,)),
    ]
    found = recording(ops, dict.fromkeys((2, 3, 4), 6))
    for storage in (2, 3, 4):
        found.blocks[storage].shape = (512, 512)
    found.blocks[4].size_bytes = rounded
    found.blocks[7].size_bytes = 0  # no other value fits where this result is
    memory = memory_of(found.ops, found.blocks, (0, len(ops)), 1 << 40, Vmem(0))
    alive = sum(memory.curves[category][3] for category in Category) - memory.holes_bytes
    assert alive == 2 * MIB + size  # 5 and 6 are there throughout


def test_gradients_that_no_optimizer_reads_are_summed_in_place() -> None:
    # The sum reads what it writes, and nobody else does: rules that follow readers end there.
    ops = [
        _mm(1, 2),
        _mm(1, 3),
        op("add_", Work.ELEMENTWISE, (2, 3), (2,)),
        op("relu", Work.ELEMENTWISE, (1,), (4,)),
    ]
    found = recording(ops, {2: 4, 3: 3})
    for storage in (2, 3):
        found.blocks[storage].shape = (512, 512)
    uses = uses_of(found.ops, found.blocks, 0)
    assert [one.name for one in uses.readers_alone(found.ops, 3)] == ["add_"]
    memory = memory_of(found.ops, found.blocks, (0, len(ops)), 1 << 40, Vmem(0))
    assert memory.peak_bytes > 0
