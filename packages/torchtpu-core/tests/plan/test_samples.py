# SPDX-License-Identifier: Apache-2.0
"""How many samples a step of a model without tokens trains on."""

from __future__ import annotations

import pytest

IMAGES = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group()
body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten())
model = nn.parallel.DistributedDataParallel(body.to("tpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with torch.no_grad():
        model(torch.randn(64, 3, 16, 16, device="tpu"))
    for _ in range(2):
        model(torch.randn(24, 3, 16, 16, device="tpu")).sum().backward()
    optimizer.step()
"""


def test_images_of_all_microbatches_and_ranks_are_counted_and_no_evaluation(planned) -> None:
    plan = planned(IMAGES)
    assert plan["samples_per_rank_and_step"] == 2 * 24
    assert plan["samples_per_s"] * plan["step_s"] == pytest.approx(4 * 2 * 24)
    assert "samples/s" in plan["said"]
    assert plan["tokens_per_rank_and_step"] == 0
