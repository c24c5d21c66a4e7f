# SPDX-License-Identifier: Apache-2.0
"""A language model of two LSTM layers, ``[B, T] -> [B, T, V]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
D, T, V = 512, 64, 8192


class Model(nn.Module):
    """Words, two layers, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.body = nn.LSTM(D, D, 2, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.body(self.words(words))[0])


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    words = torch.randint(0, V, (given.batch, T + 1), device="tpu")
    logits = model(words[:, :-1]).flatten(0, 1).float()
    return F.cross_entropy(logits, words[:, 1:].flatten())


train(Model(), given, loss)
