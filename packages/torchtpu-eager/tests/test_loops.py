# SPDX-License-Identifier: Apache-2.0
"""Loops whose number of rounds changes by chance run in pieces that every number shares."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("compiles_at_once")
BLOCKS, STEPS = 14, 20


class Network:
    """Residual blocks that are alike, of which a step leaves some out.

    Args:
        device: where it trains.
    """

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.chosen = random.Random(0)
        blocks = (
            nn.Sequential(
                *(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24)),
                *(nn.Tanh(), nn.Linear(24, 16), nn.Sigmoid()),
            )
            for _ in range(BLOCKS)
        )
        self.model = nn.ModuleList([*blocks, nn.Linear(16, 4)]).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.002)
        self.x = torch.randn(8, 16).to(device)
        self.y = torch.randint(0, 4, (8,)).to(device)

    def step(self) -> float:
        *blocks, head = self.model
        x = self.x
        for block in blocks:
            x = x + block(x) if self.chosen.random() < 0.7 else x
        loss = nn.functional.cross_entropy(head(x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_layers_that_are_left_out_by_chance_run_in_pieces_soon() -> None:
    network, reference = Network("tpu"), Network("cpu")
    losses = [network.step() for _ in range(STEPS)]
    torch.tpu.reset_counters()
    losses += [network.step() for _ in range(STEPS)]
    counters = torch.tpu.counters()
    assert counters["fused_ops"] > 0.75 * counters["ops"], counters
    expected = [reference.step() for _ in range(2 * STEPS)]
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
