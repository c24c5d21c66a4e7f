# SPDX-License-Identifier: Apache-2.0
"""Images that a step leaves behind beside its gradients have the CPU's values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("compiles_at_once")


def kept_by_steps(model: nn.Sequential, images: Tensor) -> list[Tensor]:
    """What a script may look at after its fifth step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[Tensor] = []
    for _ in range(5):
        given = images.clone().requires_grad_()
        features = model[:3](given)
        result = model[3:](features)
        optimizer.zero_grad()
        result.square().mean().backward()
        optimizer.step()
        kept = [features.detach(), result.detach(), given.grad, model[2].weight.grad]
    return [one.cpu() for one in kept]


def test_features_kept_beside_the_gradient_of_a_large_convolution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 128, 1),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, padding=1),  # its gradient is moved once (`channel_order`)
        nn.ReLU(),
        nn.Conv2d(256, 8, 1),
    )
    images = torch.randn(2, 8, 6, 6)
    expected = kept_by_steps(copy.deepcopy(model), images)
    before = torch.tpu.counters()["runs"]
    found = kept_by_steps(model.to("tpu"), images.to("tpu"))
    assert torch.tpu.counters()["runs"] > before
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
