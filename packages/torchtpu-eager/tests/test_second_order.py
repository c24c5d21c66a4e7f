# SPDX-License-Identifier: Apache-2.0
"""Steps that differentiate a backward pass are one stream that comes again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

pytestmark = pytest.mark.usefixtures("compiles_at_once")


def meta_loss(model: nn.Module, tasks: list[torch.Tensor]) -> torch.Tensor:
    """Three inner steps per task, differentiated as meta-learning does."""
    total = tasks[0].new_zeros(())
    for x in tasks:
        inner = dict(model.named_parameters())
        for _ in range(3):
            loss = functional_call(model, inner, (x,)).square().mean()
            gradients = torch.autograd.grad(loss, list(inner.values()), create_graph=True)
            inner = {k: p - 0.1 * g for (k, p), g in zip(inner.items(), gradients, strict=True)}
        total = total + functional_call(model, inner, (x,)).square().mean()
    return total


def test_step_of_meta_learning_becomes_one_program():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tasks = [torch.randn(4, 2).to("tpu") for _ in range(3)]
    runs = []
    for _ in range(6):
        before = torch.tpu.counters()["runs"]
        loss = meta_loss(model, tasks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        runs.append(torch.tpu.counters()["runs"] - before)
    assert runs[-2:] == [1, 1]
