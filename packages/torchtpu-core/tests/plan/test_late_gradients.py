# SPDX-License-Identifier: Apache-2.0
"""Gradients that are made at the end of a step, and pooled images that VMEM holds."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.late_gradients import places_of_late_gradients
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.records import Block, Category, Phase, Recording, Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import MIB, op, recording

BACK = Phase.BACKWARD
ROWS, MADE, GRADIENT, IMAGE, MORE = 1, 2, 3, 4, 5


def _layer(read: int, phase: Phase = BACK, category: Category = Category.GRADIENTS) -> Recording:
    """A large layer's gradient, then work on an image that is as large and dies."""
    product = op("mm", Work.MATMUL, (ROWS,), (MADE,), phase, size=8 * MIB)
    product.read_bytes = (read,)
    ops = [
        product,
        op("_to_copy", Work.ELEMENTWISE, (MADE,), (GRADIENT,), phase, size=8 * MIB),
        op("convolution_backward", Work.MATMUL, (ROWS,), (IMAGE,), BACK, size=8 * MIB),
        op("convolution_backward", Work.MATMUL, (IMAGE,), (MORE,), BACK),
    ]
    made = recording(ops, {MADE: 2, IMAGE: 4, MORE: 4}, size=8 * MIB)
    made.blocks[GRADIENT].category = category
    return made


@pytest.mark.parametrize(
    ("read", "phase", "category", "late"),
    [
        (MIB, BACK, Category.GRADIENTS, True),
        (8 * MIB, BACK, Category.GRADIENTS, False),  # its operands die with it
        (MIB, Phase.FORWARD, Category.GRADIENTS, False),
        (MIB, BACK, Category.PARAMETERS, False),
    ],
)
def test_gradients_of_products_with_small_operands_are_late(read, phase, category, late) -> None:
    made = _layer(read, phase, category)
    found = places_of_late_gradients(made.ops, made.blocks, {GRADIENT})
    assert found == ({GRADIENT: (0, 4)} if late else {})
    assert places_of_late_gradients(made.ops, made.blocks, ()) == {}


@pytest.mark.parametrize(("reads", "writes"), [((GRADIENT,), (MORE,)), ((ROWS,), (GRADIENT,))])
def test_place_of_a_late_gradient_is_free_until_it_is_read_or_added_to(reads, writes) -> None:
    made = _layer(MIB)
    made.ops.insert(3, op("add_", Work.ELEMENTWISE, reads, writes, BACK))
    found = places_of_late_gradients(made.ops, made.blocks, {GRADIENT})
    assert found == {GRADIENT: (0, 3)}


def test_values_lie_where_a_late_gradient_will_be() -> None:
    late, early = (_layer(read) for read in (MIB, 8 * MIB))
    peaks = [memory_of(one.ops, one.blocks, (0, 4), 1 << 34).peak_bytes for one in (late, early)]
    assert peaks[1] - peaks[0] == 8 * MIB


@pytest.mark.parametrize(("room", "there"), [(2 * MIB, False), (MIB // 2, True)])
def test_image_is_written_for_a_max_pools_gradient_unless_vmem_holds_it(room, there) -> None:
    ops = [
        op("convolution", Work.MATMUL, (0,), (1,)),
        op("relu", Work.ELEMENTWISE, (1,), (2,)),
        op("max_pool2d_with_indices", Work.ELEMENTWISE, (2,), (3,)),
        op("convolution", Work.MATMUL, (3,), (4,)),
        op("max_pool2d_with_indices_backward", Work.ELEMENTWISE, (4, 2), (5,), BACK),
        op("convolution_backward", Work.MATMUL, (5,), (6,), BACK),
    ]
    made = recording(ops, dict.fromkeys(range(1, 7), 6))
    made.blocks[0] = Block(MIB, -1, BACK, "", category=Category.PARAMETERS)
    # Nothing waits for its next use: only the image is read right after it is written.
    vmem = Vmem(room, [float(i) for i in range(len(ops) + 1)], longest_s=-1.0)
    lives = lifetimes_of(made.ops, made.blocks, 0, vmem).lives
    assert any(life.storage == 2 for life in lives) == there
