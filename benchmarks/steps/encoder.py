# SPDX-License-Identifier: Apache-2.0
"""An encoder with attention by products, tied to its embedding, ``[B, 128] -> [B, 128, V]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
V, T, D, H = 30522, 128, 512, 8


class Attention(nn.Module):
    """``[B, T, D] -> [B, T, D]``."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """All pairs of positions."""
        parts = (layer(x).unflatten(-1, (H, -1)) for layer in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in parts)
        weights = (q @ k.transpose(-1, -2) / (D // H) ** 0.5).softmax(-1)
        return self.out((self.dropout(weights) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """``[B, T, D] -> [B, T, D]``, norms after sums."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.dropout = Attention(), nn.Dropout(0.1)
        self.one, self.two = nn.LayerNorm(D), nn.LayerNorm(D)
        self.network = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and network."""
        x = self.one(x + self.dropout(self.attention(x)))
        return self.two(x + self.dropout(self.network(x)))


class Encoder(nn.Module):
    """Logits by the embedding's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.Sequential(nn.LayerNorm(D), *(Layer() for _ in range(4)))
        self.last, self.bias = nn.Linear(D, D), nn.Parameter(torch.zeros(V))

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, T] -> [B, T, V]``."""
        places = self.places(torch.arange(T, device=tokens.device))
        x = self.layers(self.words(tokens) + places)
        return F.gelu(self.last(x)) @ self.words.weight.T + self.bias


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    tokens = torch.randint(0, V, (given.batch, T), device="tpu")
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


train(Encoder(), given, loss)
