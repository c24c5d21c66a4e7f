# SPDX-License-Identifier: Apache-2.0
"""A variational autoencoder of convolutions, ``[B, 3, 64, 64] -> [B, 3, 64, 64]``."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()


class Autoencoder(nn.Module):
    """Four levels down and up."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 32, 64, 128, 256)
        pairs = list(pairwise(sizes))
        down = [(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)) for a, b in pairs]
        up = [(nn.ReLU(), nn.ConvTranspose2d(b, a, 4, 2, 1)) for a, b in reversed(pairs)]
        self.encoder = nn.Sequential(*(part for two in down for part in two), nn.Flatten())
        self.mean, self.spread = nn.Linear(4096, 128), nn.Linear(4096, 128)
        self.start = nn.Linear(128, 4096)
        self.decoder = nn.Sequential(*(part for two in up for part in two))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The image again, mean and logarithm of the variance."""
        y = self.encoder(x)
        mean, spread = self.mean(y), self.spread(y)
        z = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        return self.decoder(self.start(z).view(-1, 256, 4, 4)), mean, spread


def loss(model: nn.Module) -> Tensor:
    """Squared error and divergence."""
    images = torch.randn(given.batch, 3, 64, 64, device="tpu", dtype=given.dtype)
    again, mean, spread = model(images)
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
    return F.mse_loss(again, images) + divergence


train(Autoencoder(), given, loss)
