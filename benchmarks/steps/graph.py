# SPDX-License-Identifier: Apache-2.0
"""A graph network of three layers that sums over edges, ``[N, 256] -> [N, 40]``; N = 64 B."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
N, E = 64 * given.batch, 640 * given.batch


class Layer(nn.Module):
    """``[N, inside] -> [N, outside]``."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inside, outside), nn.Linear(inside, outside)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Own features and the neighbours' sum."""
        summed = torch.zeros_like(x).index_add_(0, target, x[source])
        return self.own(x) + self.others(summed)


class Network(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(256, 256), Layer(256, 256), Layer(256, 40)])

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each node."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, source, target))
        return self.layers[-1](x, source, target)


def loss(model: nn.Module) -> Tensor:
    """Cross entropy of each node."""
    x = torch.randn(N, 256, device="tpu", dtype=given.dtype)
    source, target = (torch.randint(0, N, (E,), device="tpu") for _ in range(2))
    labels = torch.randint(0, 40, (N,), device="tpu")
    return F.cross_entropy(model(x, source, target).float(), labels)


train(Network(), given, loss)
