# SPDX-License-Identifier: Apache-2.0
"""Residual blocks of convolutions on small images, ``[B, 3, 64, 64] -> [B, 100]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()


class Block(nn.Module):
    """``[B, inside, H, W] -> [B, outside, H / stride, W / stride]``."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            convolution = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.short = nn.Sequential(convolution, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and the way past them."""
        y = self.norm_two(self.two(F.relu(self.norm_one(self.one(x)))))
        return F.relu(y + self.short(x))


stages = [Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2), Block(256, 256, 1)]
stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    images = torch.randn(given.batch, 3, 64, 64, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 100, (given.batch,), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(nn.Sequential(stem, *stages, *head), given, loss)
