# SPDX-License-Identifier: Apache-2.0
"""Inverted residuals with depthwise convolutions and gates, ``[B, 3, 160, 160] -> [B, 1000]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()


def convolution(i: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution and its norm."""
    layer = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(o))


class Block(nn.Module):
    """``[B, I, H, W] -> [B, O, H / stride, W / stride]``."""

    def __init__(self, i: int, o: int, stride: int, kernel: int = 3) -> None:
        super().__init__()
        wide = 4 * i
        self.wider = nn.Sequential(convolution(i, wide, 1), nn.SiLU())
        self.depthwise = nn.Sequential(convolution(wide, wide, kernel, stride, wide), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(wide, wide // 16, 1), nn.Conv2d(wide // 16, wide, 1)
        self.narrower = convolution(wide, o, 1)
        self.skip = i == o and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """Wider, depthwise, gated, narrower."""
        y = self.depthwise(self.wider(x))
        gate = self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True))))
        y = self.narrower(y * torch.sigmoid(gate))
        return x + y if self.skip else y


model = nn.Sequential(
    *(convolution(3, 32, 3, 2), nn.SiLU(), Block(32, 48, 2), Block(48, 48, 1)),
    *(Block(48, 80, 2, 5), Block(80, 80, 1, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    *(nn.Dropout(0.2), nn.Linear(80, 1000)),
)


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    images = torch.randn(given.batch, 3, 160, 160, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 1000, (given.batch,), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(model, given, loss)
