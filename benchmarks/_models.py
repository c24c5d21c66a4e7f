# SPDX-License-Identifier: Apache-2.0
"""The benchmark's models in plain PyTorch; `_jax_models` has the same by hand in JAX."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]``."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]``."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """``[B, T]`` tokens to logits; the embedding is also the head."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[B, T, V]``."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(place)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = None
        if stride != 1:
            self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip_norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]``."""
        h = F.relu(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(h))
        short = x if self.skip is None else self.skip_norm(self.skip(x))
        return F.relu(h + short)


class ResNet(nn.Module):
    """ResNet-8 for 32x32 images."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(
            [
                ResidualBlock(width, width, 1),
                ResidualBlock(width, 2 * width, 2),
                ResidualBlock(2 * width, 4 * width, 2),
            ]
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]``."""
        x = F.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def _perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(n, m)]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Dense features and embedding bags, their products, and a network on either side.

    Args:
        tables: embedding tables.
        rows: of each table.
        width: of an embedding.
        dense: dense features.
        bottom: hidden widths of the network on the dense features.
        top: hidden widths of the network on the products.
    """

    def __init__(
        self,
        tables: int = 8,
        rows: int = 1000,
        width: int = 16,
        dense: int = 13,
        bottom: tuple[int, ...] = (64,),
        top: tuple[int, ...] = (64,),
    ) -> None:
        super().__init__()
        self.bottom = _perceptron(dense, *bottom, width)
        self.bottom.append(nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = _perceptron(width + pairs, *top, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        """`bags` is ``[tables, batch, indices]``; logits ``[batch]``."""
        x = self.bottom(dense)
        features = [x, *(table(bags[i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(features, 1)
        crossed = torch.bmm(stacked, stacked.transpose(1, 2))
        joined = torch.cat([x, crossed[:, self.pairs[0], self.pairs[1]]], 1)
        return self.top(joined)[:, 0]
