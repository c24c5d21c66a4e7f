# SPDX-License-Identifier: Apache-2.0
"""An encoder and a decoder of PyTorch's own layers with dropout, ``[B, T] -> [B, T, V]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
D, T, V = 512, 256, 16384


class Translator(nn.Module):
    """Three layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.body = nn.Transformer(D, 8, 3, 3, 4 * D, dropout=0.1, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(
            T, device=source.device, dtype=given.dtype
        )
        y = self.body(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(y)


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    source, target = (torch.randint(0, V, (given.batch, T), device="tpu") for _ in range(2))
    return F.cross_entropy(model(source, target).flatten(0, 1).float(), target.flatten())


train(Translator(), given, loss)
