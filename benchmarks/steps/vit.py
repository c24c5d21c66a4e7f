# SPDX-License-Identifier: Apache-2.0
"""A vision transformer of PyTorch's own layers, ``[B, 3, 128, 128] -> [B, 100]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
D = 384


class ViT(nn.Module):
    """Patches of 8 by 8, six layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, 8, 8)
        self.places = nn.Parameter(torch.zeros(1, 256, D))
        layer = nn.TransformerEncoderLayer(
            D, 6, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(D, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    images = torch.randn(given.batch, 3, 128, 128, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 100, (given.batch,), device="tpu")
    return F.cross_entropy(model(images).float(), labels)


train(ViT(), given, loss)
