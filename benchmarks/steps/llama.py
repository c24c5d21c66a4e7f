# SPDX-License-Identifier: Apache-2.0
"""A small Llama with grouped heads and a gated network, ``[B, T] -> [B, T, V]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
L, D, H, KV, T, V = 4, 512, 8, 2, 512, 16384


class Layer(nn.Module):
    """``[B, T, D] -> [B, T, D]``."""

    def __init__(self) -> None:
        super().__init__()
        head = D // H
        self.first, self.second = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q, self.kv = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * KV * head, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.gate, self.up = nn.Linear(D, 1408, bias=False), nn.Linear(D, 1408, bias=False)
        self.down = nn.Linear(1408, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention and network."""
        y = self.first(x)
        q = self.q(y).view(*x.shape[:2], H, D // H).transpose(1, 2)
        k, v = self.kv(y).view(*x.shape[:2], 2, KV, D // H).permute(2, 0, 3, 1, 4)
        q, k = (turned(part, cos, sin) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary places."""
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class Llama(nn.Module):
    """Four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, V, bias=False)
        angles = torch.outer(torch.arange(T), 1e4 ** -torch.linspace(0, 1, D // H // 2))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    words = torch.randint(0, V, (given.batch, T + 1), device="tpu")
    logits = model(words[:, :-1]).flatten(0, 1).float()
    return F.cross_entropy(logits, words[:, 1:].flatten())


train(Llama(), given, loss)
