# SPDX-License-Identifier: Apache-2.0
"""Backward passes that come several times before an optimizer's step share programs."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("compiles_at_once")


class Network:
    """Trains on a number of micro-batches in each step.

    Args:
        device: where it trains.
        layers: hidden ones.
    """

    def __init__(self, device: str, layers: int = 3) -> None:
        torch.manual_seed(0)
        hidden = (
            layer
            for _ in range(layers)
            for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())
        )
        self.model = nn.Sequential(*hidden, nn.Linear(16, 4)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.generator = torch.Generator().manual_seed(0)
        self.device = device

    def loss(self) -> torch.Tensor:
        x = torch.randn(8, 16, generator=self.generator).to(self.device)
        y = torch.randint(0, 4, (8,), generator=self.generator).to(self.device)
        return nn.functional.cross_entropy(self.model(x), y)

    def step(self, rounds: int) -> float:
        total = torch.zeros((), device=self.device)
        for _ in range(rounds):
            loss = self.loss() / rounds
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()


def _cuts() -> int:
    return torch.tpu.counters()["flushes"].get("backward pass", 0)


def test_any_number_of_micro_batches_shares_programs() -> None:
    network, reference = Network("tpu"), Network("cpu")
    chosen = random.Random(0)
    numbers = [3] * 6 + [chosen.randint(1, 5) for _ in range(12)]
    losses = [network.step(rounds) for rounds in numbers]
    assert _cuts() >= sum(numbers[1:]) // 2, torch.tpu.counters()
    torch.tpu.reset_counters()
    more = [7, 1, 2, 9, 4, 6]
    losses += [network.step(rounds) for rounds in more]
    counters = torch.tpu.counters()
    assert counters["compiles"] == 0, torch.tpu.explain()
    assert counters["fused_ops"] > 0.9 * counters["ops"], counters
    expected = [reference.step(rounds) for rounds in numbers + more]
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_or_two_backward_passes_stay_one_program(rounds: int) -> None:
    network = Network("tpu")
    for _ in range(6):
        network.step(rounds)
    assert _cuts() == 0
    torch.tpu.reset_counters()
    network.step(rounds)
    assert torch.tpu.counters()["runs"] == 1, torch.tpu.counters()


def test_a_script_that_stops_accumulating_gets_whole_steps_again() -> None:
    network = Network("tpu")
    for _ in range(2):
        network.step(4)
    assert _cuts() > 0
    for _ in range(16):
        network.step(1)
    torch.tpu.reset_counters()
    for _ in range(4):
        network.step(1)
    assert _cuts() == 0


def test_evaluation_after_accumulation_is_not_cut() -> None:
    network = Network("tpu")
    for _ in range(3):
        network.step(4)
    torch.tpu.reset_counters()
    with torch.no_grad():
        sum(network.loss() for _ in range(4)).item()
    assert _cuts() == 0


def test_gradients_of_an_attack_step_by_step() -> None:
    def attack(device: str) -> list[float]:
        network = Network(device, layers=6)
        x = torch.randn(8, 16, generator=network.generator).to(device)
        sums = []
        for _ in range(5):
            moved = x.clone()
            for _ in range(6):
                moved.requires_grad_()
                value = network.model(moved).square().mean()
                (gradient,) = torch.autograd.grad(value, moved)
                moved = (moved + 0.1 * gradient.sign()).detach()
            sums.append(moved.sum().item())
        return sums

    found = attack("tpu")
    assert _cuts() > 0
    torch.testing.assert_close(found, attack("cpu"), rtol=1e-4, atol=1e-4)
