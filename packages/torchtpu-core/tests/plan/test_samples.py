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

ROWS = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for _ in range(3):
        total = model(torch.randn({shape}, device="tpu")).sum()
        (total.view(1, 1) @ torch.ones(1, 2, device="tpu")).sum().backward()
    optimizer.step()
"""

LABELS = """
import torch
from torch import nn

labels = nn.Embedding(10, 4).to("tpu")
layer = nn.Conv2d(3, 4, 3).to("tpu")
optimizer = torch.optim.SGD([*labels.parameters(), *layer.parameters()], lr=0.1)
for _ in range(2):
    for _ in range(2):
        label = labels(torch.randint(0, 10, (8,), device="tpu"))
        image = layer(torch.randn(8, 3, 9, 9, device="tpu"))
        (image * label[:, :, None, None]).sum().backward()
    optimizer.step()
"""


#: The encoder turns batch and frames, so that their rows are joined by a copy.
FRAMES = """
import torch
from torch import nn

encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).to("tpu")
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for _ in range(2):
    with torch.autocast("tpu", dtype=torch.bfloat16):
        encoder(torch.randn(6, 20, 32, device="tpu")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("shape", ["16, 32", "16, 7, 32"])
def test_rows_of_data_that_the_first_linear_layer_reads_are_counted(planned, shape) -> None:
    assert planned(ROWS.format(shape=shape))["samples_per_rank_and_step"] == 3 * 16


def test_images_of_all_microbatches_and_ranks_are_counted_and_no_evaluation(planned) -> None:
    plan = planned(IMAGES)
    assert plan["samples_per_rank_and_step"] == 2 * 24
    assert plan["samples_per_s"] * plan["step_s"] == pytest.approx(4 * 2 * 24)
    assert "samples/s" in plan["said"]
    assert plan["tokens_per_rank_and_step"] == 0


def test_a_label_for_each_image_is_no_token(planned) -> None:
    plan = planned(LABELS)
    assert (plan["tokens_per_rank_and_step"], plan["samples_per_rank_and_step"]) == (0, 2 * 8)


def test_frames_of_a_sample_are_no_samples(planned) -> None:
    assert planned(FRAMES)["samples_per_rank_and_step"] == 6
