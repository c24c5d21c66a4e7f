# SPDX-License-Identifier: Apache-2.0
"""Compiled steps of optimizers leave the state that eager CPU steps leave."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


def decayed_and_plain(model: nn.Module) -> list[dict[str, object]]:
    """Parameter groups of weights with decay and of biases without."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, "lr": 1e-3},
    ]


def training(model: nn.Module) -> tuple[torch.optim.Optimizer, Callable[[Tensor], Tensor]]:
    optimizer = torch.optim.AdamW(decayed_and_plain(model), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return optimizer, step


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_step_counts_of_parameter_groups_go_on_when_a_step_is_compiled_anew(backend: str) -> None:
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = copy.deepcopy(reference).to("tpu")
    (optimizer, step), (own, own_step) = training(reference), training(model)
    compiled = torch.compile(own_step, backend=backend)
    for number in range(5):
        if number == 3:
            torch._dynamo.reset()
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), step(x))
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q)
        assert own.state[p]["step"].item() == optimizer.state[q]["step"].item() == 5
