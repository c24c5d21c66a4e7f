# SPDX-License-Identifier: Apache-2.0
"""Advice to double the batch gains what weights alone cost, and nothing else."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Phase, Work
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


def test_work_in_vmem_and_random_numbers_double_with_the_batch() -> None:
    moves = [op("sort", Work.MOVE, (4,), (5,), size=32 * MIB), op("sort", Work.MOVE, (5,), (6,))]
    draw = op("bernoulli", Work.ELEMENTWISE, (), (7,), drawn=1e8)
    plain, more = _plan(), _plan(*moves, draw)
    assert more.step_s > plain.step_s
    assert _gain_s(more) == pytest.approx(_gain_s(plain), abs=1e-9)
