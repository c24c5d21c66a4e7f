# SPDX-License-Identifier: Apache-2.0
"""An MLP-mixer of six layers, ``[B, 3, 128, 128] -> [B, 100]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
D, PATCHES = 512, 256


class Layer(nn.Module):
    """``[B, PATCHES, D] -> [B, PATCHES, D]``."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(D), nn.LayerNorm(D)
        self.over_patches = nn.Sequential(
            nn.Linear(PATCHES, 512), nn.GELU(), nn.Linear(512, PATCHES)
        )
        self.over_features = nn.Sequential(nn.Linear(D, 2048), nn.GELU(), nn.Linear(2048, D))

    def forward(self, x: Tensor) -> Tensor:
        """Mixes patches, then features."""
        x = x + self.over_patches(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_features(self.two(x))


class Mixer(nn.Module):
    """Patches of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, 8, 8)
        self.layers = nn.Sequential(*(Layer() for _ in range(6)), nn.LayerNorm(D))
        self.head = nn.Linear(D, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    images = torch.randn(given.batch, 3, 128, 128, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 100, (given.batch,), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(Mixer(), given, loss)
