# SPDX-License-Identifier: Apache-2.0
"""Training goes on from a distributed checkpoint of another mesh as if nothing had happened."""

from __future__ import annotations

import importlib

import pytest
import torch

# Another order of float32 sums, which ten steps of AdamW carry on.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
#: Shapes of the meshes that train in turn, and how each writes its checkpoint for the next.
LEGS = {
    "fewer": (((4,), "sync"), ((2, 2), "async"), ((2,), "sync")),
    "more": (((2,), "sync"), ((4,), "async"), ((2,), "sync"), ((2, 2), "sync")),
}
STEPS = 2


@pytest.mark.parametrize("legs", ["fewer", pytest.param("more", marks=pytest.mark.slow)])
def test_training_resumed_on_other_meshes_equals_one_process(legs, pair, four, tmp_path):
    resharding = importlib.import_module("resharding")
    alone, source = resharding.Training(), ""
    for number, (shape, kind) in enumerate(LEGS[legs]):
        wanted = resharding.results(alone, STEPS)
        target = str(tmp_path / f"{number}_{kind}")
        ranks = pair if torch.Size(shape).numel() == 2 else four
        for rank, found in enumerate(ranks("resharding.leg", source, target, shape, STEPS)):
            assert len(found) == len(wanted)
            for index, (got, expected) in enumerate(zip(found, wanted, strict=True)):
                where = f"leg {number} on {shape}, rank {rank}, value {index}: ".format
                torch.testing.assert_close(
                    got, expected, **CLOSE, msg=lambda text, where=where: where() + text
                )
        source = target
