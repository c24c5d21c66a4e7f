# SPDX-License-Identifier: Apache-2.0
"""A classifier of three linear layers, ``[B, 784] -> [B, 10]``."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training import options, train

given = options()
widths = (784, 2048, 2048, 2048)
layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]


def loss(model: nn.Module) -> Tensor:
    """Cross entropy on a batch."""
    x = torch.randn(given.batch, 784, device="tpu", dtype=given.dtype)
    labels = torch.randint(0, 10, (given.batch,), device="tpu")
    return F.cross_entropy(model(x).float(), labels)


train(nn.Sequential(*layers, nn.Linear(2048, 10)), given, loss)
