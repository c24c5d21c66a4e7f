# SPDX-License-Identifier: Apache-2.0
"""Wide depthwise convolutions with norms over features, ``[B, 3, 128, 128] -> [B, 1000]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()


class Block(nn.Module):
    """``[B, D, H, W] -> [B, D, H, W]``."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(d, d, 7, padding=3, groups=d)
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.scale = nn.Parameter(torch.full((d,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        """Depthwise, then a network over features."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


class Net(nn.Module):
    """Two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            *(nn.Conv2d(3, 96, 4, 4), Block(96), Block(96)),
            *(nn.Conv2d(96, 192, 2, 2), Block(192), Block(192), Block(192)),
        )
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.norm(self.images(x).mean((2, 3))))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    images = torch.randn(given.batch, 3, 128, 128, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 1000, (given.batch,), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(Net(), given, loss)
