# SPDX-License-Identifier: Apache-2.0
"""Random programs over overlapping groups end with the values of a model, and end at all."""

from __future__ import annotations

import torch


def check(ranks, seeds: range) -> None:
    for rank, programs in enumerate(ranks("interleavings.run", list(seeds))):
        for seed, (found, wanted) in zip(seeds, programs, strict=True):
            assert torch.equal(found, wanted), f"rank {rank}, program {seed}"


def test_random_programs_over_overlapping_groups_give_the_model_s_values(four):
    check(four, range(200))
