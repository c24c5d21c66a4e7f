# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks train: a model, a batch, a loss and an optimizer, with torch alone.

Any torch can import this: peers run in environments that lack torchtpu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import _models as models
import torch
from torch.nn import functional as F

#: A model, its batch (the loss's other arguments), and the loss of a model and a batch.
Task: TypeAlias = tuple[torch.nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]


def _gpt() -> Task:
    torch.manual_seed(0)
    model = models.GPT(layers=4, width=256, heads=8, vocabulary=512, length=128)
    tokens = torch.randint(0, 512, (8, 129))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return model, batch, loss_of


def _resnet() -> Task:
    torch.manual_seed(0)
    batch = (torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,)))
    return models.ResNet(), batch, lambda model, x, y: F.cross_entropy(model(x), y)


def _dlrm_loss(model: Any, dense: Any, bags: Any, y: Any) -> Any:
    return F.binary_cross_entropy_with_logits(model(dense, bags), y)


def _dlrm() -> Task:
    """So small that the host decides: a step of JAX's takes less than a millisecond."""
    torch.manual_seed(0)
    batch = (torch.randn(128, 13), torch.randint(0, 1000, (8, 128, 4)), torch.rand(128).round())
    return models.DLRM(), batch, _dlrm_loss


def _criteo() -> Task:
    """DLRM's published networks for Criteo Kaggle, tables of 10,000 rows, a batch of 2,048."""
    torch.manual_seed(0)
    rows, size = 10_000, 2048
    model = models.DLRM(26, rows, bottom=(512, 256, 64), top=(512, 256))
    batch = (torch.randn(size, 13), torch.randint(0, rows, (26, size, 1)), torch.rand(size).round())
    return model, batch, _dlrm_loss


MODELS = {"gpt": _gpt, "resnet": _resnet, "dlrm": _dlrm, "criteo": _criteo}


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Momentum for the residual network, AdamW for the others."""
    if name == "resnet":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
