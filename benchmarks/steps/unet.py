# SPDX-License-Identifier: Apache-2.0
"""A U-Net of three levels, ``[B, 3, 96, 96] -> [B, 2, 96, 96]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()


def double(inside: int, outside: int) -> nn.Module:
    """Two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.GroupNorm(8, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.GroupNorm(8, outside),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Down, and up with what was seen on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.down_one, self.down_two, self.bottom = double(3, 64), double(64, 128), double(128, 256)
        self.raise_two = nn.ConvTranspose2d(256, 128, 2, 2)
        self.raise_one = nn.ConvTranspose2d(128, 64, 2, 2)
        self.up_two, self.up_one = double(256, 128), double(128, 64)
        self.out = nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each pixel."""
        one = self.down_one(x)
        two = self.down_two(F.max_pool2d(one, 2))
        low = self.bottom(F.max_pool2d(two, 2))
        y = self.up_two(torch.cat([self.raise_two(low), two], 1))
        return self.out(self.up_one(torch.cat([self.raise_one(y), one], 1)))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy of each pixel."""
    images = torch.randn(given.batch, 3, 96, 96, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 2, (given.batch, 96, 96), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(UNet(), given, loss)
