# SPDX-License-Identifier: Apache-2.0
"""A rank that logs, saves, computes or recompiles on its own changes nothing for the others."""

from __future__ import annotations

import pytest
import torch


def check(ranks, steps: int) -> None:
    for found, wanted in ranks("alone.run", steps, 7):
        assert torch.equal(found, wanted)


def test_work_of_one_rank_leaves_the_sums_of_all_right(pair):
    check(pair, 30)


@pytest.mark.slow
def test_1000_steps_with_random_work_of_one_rank_leave_the_sums_of_all_right(pair):
    check(pair, 1000)
