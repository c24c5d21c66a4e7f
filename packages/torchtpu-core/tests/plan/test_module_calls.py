# SPDX-License-Identifier: Apache-2.0
"""The step of scripts without an optimizer."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice

PEAK = parse_slice("v5e:2x2").chip.figure("peak_bf16_flops_per_s")
START = """
import torch
from torch import nn

scorer = nn.Linear(64, 64, bias=False).to("tpu")
model = nn.Sequential(nn.Embedding(64, 256), nn.Linear(256, 512, bias=False)).to("tpu")
torch.randn(1024, 1024, device="tpu") @ torch.randn(1024, 1024, device="tpu")
with torch.no_grad():
"""
DECODE = f"""{START}
    tokens = torch.randint(0, 64, (4, 32), device="tpu")
    for _ in range(4):
        scorer(torch.randn(4, 64, device="tpu"))
        tokens = model(tokens).argmax(-1)[:, -1:] % 64
"""
ONCE = f"""{START}
    out = model(torch.randint(0, 64, (4, 32), device="tpu")) @ torch.randn(512, 8, device="tpu")
"""
FAILED = f"""{START}
    try:
        model(torch.randint(0, 64, (4, 32), device="tpu").float())
    except (RuntimeError, TypeError, ValueError):
        pass
    model(torch.randint(0, 64, (4, 32), device="tpu"))
"""


def flops(plan: dict) -> float:
    return plan["hfu"] * plan["step_s"] * PEAK


def test_a_step_of_decoding_is_the_last_token(planned) -> None:
    plan = planned(DECODE)
    # One row of each of four sequences, and the smaller model beside it.
    assert flops(plan) == pytest.approx(2 * 4 * 256 * 512 + 2 * 4 * 64 * 64)
    assert plan["tokens_per_rank_and_step"] == 4
    assert "a step is the last of 4 calls of Sequential; matrix products" in plan["said"]
    assert "each trains a model of its own" not in plan["said"]


def test_a_model_that_is_called_once_is_planned_from_there_on(planned) -> None:
    plan = planned(ONCE)
    assert flops(plan) == pytest.approx(2 * 128 * 256 * 512 + 2 * 128 * 512 * 8)
    assert "a step is the script from its call of Sequential on" in plan["said"]


def test_a_call_that_failed_is_no_call_of_the_next(planned) -> None:
    assert flops(planned(FAILED)) == pytest.approx(2 * 128 * 256 * 512)
