# SPDX-License-Identifier: Apache-2.0
"""A GPT of four layers in bfloat16 with AdamW.

Shapes: B sequences, T tokens, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

L, D, H, T, B, V = 4, 1024, 16, 1024, 8, 32768


class Block(nn.Module):
    """``[B, T, D] -> [B, T, D]``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and network."""
        parts = self.qkv(self.first(x)).view(*x.shape[:2], 3, H, D // H)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """``[B, T] -> [B, T, V]``."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.tokens(tokens) + self.places(torch.arange(T, device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = GPT().to("tpu").bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = torch.randint(0, V, (B, T + 1), device="tpu")
    optimizer.zero_grad()
    logits = model(tokens[:, :-1]).flatten(0, 1).float()
    F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
    optimizer.step()
