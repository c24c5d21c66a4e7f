# SPDX-License-Identifier: Apache-2.0
"""Tables of embeddings, their products, and two networks, as a DLRM has: ``-> [B]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
TABLES, ROWS, D = 8, 50_000, 64


class Recommender(nn.Module):
    """Dense features ``[B, 13]`` and one place in each table ``[B, 8]``."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, D, mode="sum") for _ in range(TABLES))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, D)
        )
        pairs = TABLES * (TABLES + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + D, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(TABLES + 1, TABLES + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Logits."""
        x = self.bottom(dense)
        looked_up = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *looked_up], 1)
        products = stacked @ stacked.transpose(1, 2)
        flat = products[:, self.pairs[0].long(), self.pairs[1].long()]
        return self.top(torch.cat([x, flat], 1)).flatten()


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    dense = torch.randn(given.batch, 13, device="tpu", dtype=given.dtype)
    sparse = torch.randint(0, ROWS, (given.batch, TABLES), device="tpu")
    clicked = torch.randint(0, 2, (given.batch,), device="tpu").float()
    return F.binary_cross_entropy_with_logits(model(dense, sparse).float(), clicked)


train(Recommender(), given, loss)
