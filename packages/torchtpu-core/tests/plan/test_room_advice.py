# SPDX-License-Identifier: Apache-2.0
"""Advice on room in HBM: a larger batch gains what weights alone cost, and they are not kept."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Category, Phase, Work
from torchtpu_core.testing.recordings import MIB, op, recording

WHERE = parse_slice("v5e:1x1")
PRODUCT = ((1, 65536, 4096, 4096),)


def _plan(*more):
    forward = op("mm", Work.MATMUL, (1,), (2,), products=PRODUCT)
    backward = op("mm", Work.MATMUL, (2,), (3,), phase=Phase.BACKWARD, products=PRODUCT)
    return make_plan(recording([forward, backward, *more], {}), WHERE, 1, "highest")


def _gain_s(plan) -> float:
    found = [item.gain_s for item in plan.advice if item.title.startswith("Double the batch")]
    return found[0] if found else 0.0


@pytest.mark.parametrize("phase", [Phase.GRADIENTS, Phase.OPTIMIZER])
def test_clipping_and_the_update_are_shared_by_twice_the_tokens(phase) -> None:
    work = op("mul", Work.ELEMENTWISE, (4,), (5,), phase=phase, size=512 * MIB)
    plain, more = _plan(), _plan(work)
    assert _gain_s(more) - _gain_s(plain) == pytest.approx((more.step_s - plain.step_s) / 2)


def test_copies_of_gathered_weights_are_shared_by_twice_the_tokens() -> None:
    forward = op("mm", Work.MATMUL, (1,), (2,), products=PRODUCT)
    backward = op("mm", Work.MATMUL, (2,), (3,), phase=Phase.BACKWARD, products=PRODUCT)
    split = op("split_with_sizes_copy", Work.MOVE, (4,), (5,), size=512 * MIB)
    made = recording([split, forward, backward], {})
    made.blocks[5].category = Category.GATHERED
    plain, more = _plan(), make_plan(made, WHERE, 1, "highest")
    assert _gain_s(more) - _gain_s(plain) == pytest.approx((more.step_s - plain.step_s) / 2)


def test_work_in_vmem_and_random_numbers_double_with_the_batch() -> None:
    moves = [op("sort", Work.MOVE, (4,), (5,), size=32 * MIB), op("sort", Work.MOVE, (5,), (6,))]
    draw = op("bernoulli", Work.ELEMENTWISE, (), (7,), drawn=1e8)
    plain, more = _plan(), _plan(*moves, draw)
    assert more.step_s > plain.step_s
    assert _gain_s(more) == pytest.approx(_gain_s(plain), abs=1e-9)


def test_weights_that_are_gathered_again_are_no_activations_to_keep() -> None:
    split = op("split_with_sizes_copy", Work.MOVE, (5,), (6,), Phase.RECOMPUTE, size=8 * MIB)
    made = recording(
        [
            op("mm", Work.MATMUL, (1,), (2,), products=PRODUCT),
            split,
            op("mm", Work.MATMUL, (1, 6), (3,), Phase.RECOMPUTE, products=PRODUCT),
            op("mm", Work.MATMUL, (3, 6), (4,), Phase.BACKWARD, products=PRODUCT),
        ],
        {},
    )
    made.blocks[6].category = Category.GATHERED
    found = make_plan(made, WHERE, 1, "highest").advice
    kept = next(item for item in found if "Keep more activations" in item.title)
    assert kept.why.startswith("1.00 MiB would be kept")
