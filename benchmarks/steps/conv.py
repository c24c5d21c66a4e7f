# SPDX-License-Identifier: Apache-2.0
"""Six convolutions with batch norm in float32, with momentum."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def unit(inside: int, outside: int, stride: int = 1) -> nn.Module:
    """A convolution, its norm, and what is below zero cut off."""
    convolution = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())


widths = ((3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
model = nn.Sequential(*(unit(*width) for width in widths), *head).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    images = torch.randn(64, 3, 128, 128, device="tpu")
    labels = torch.randint(0, 1000, (64,), device="tpu")
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
