# SPDX-License-Identifier: Apache-2.0
"""Quantisation-aware training in graphs: PyTorch states no sizes for one of its ops."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Observed(nn.Module):
    """Rounds its input by a range that it observes, and its weights by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("high", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.high.copy_(torch.maximum(self.high, x.detach().abs().amax()))
        point = torch.zeros((), dtype=torch.int32, device=x.device)
        x = torch.fake_quantize_per_tensor_affine(x, self.high / 127, point, -128, 127)
        weight = self.layer.weight
        scale = weight.detach().abs().amax(1) / 127
        points = torch.zeros(4, dtype=torch.int32, device=x.device)
        weight = torch.fake_quantize_per_channel_affine(weight, scale, points, 0, -128, 127)
        return F.linear(x, weight, self.layer.bias)


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_with_observed_ranges_is_as_on_the_cpu(dynamic: bool) -> None:
    model = Observed()
    on_device = copy.deepcopy(model).to("tpu")
    compiled = torch.compile(on_device, backend="tpu", fullgraph=True, dynamic=dynamic)
    for n in (5, 9, 14):
        x = torch.randn(n, 6)
        expected, actual = model(x), compiled(x.to("tpu"))
        expected.square().sum().backward()
        actual.square().sum().backward()
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-3)
    for mine, own in zip(on_device.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), own.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(on_device.high.cpu(), model.high)
