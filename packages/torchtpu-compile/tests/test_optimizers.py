# SPDX-License-Identifier: Apache-2.0
"""Compiled steps of optimizers leave the state that eager CPU steps leave."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchtpu_core import plugins
from torchtpu_core.hookspecs import hookimpl


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


def test_parameter_that_is_unfrozen_later_is_counted_from_then_on() -> None:
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = copy.deepcopy(reference).to("tpu")
    (optimizer, step), (own, own_step) = training(reference), training(model)
    compiled = torch.compile(own_step, backend="tpu")
    for number in range(5):
        for layers in (reference, model):
            layers[0].weight.requires_grad_(number >= 2)
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), step(x))
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q)
        assert own.state[p]["step"].item() == optimizer.state[q]["step"].item()
    assert own.state[model[0].weight]["step"].item() == 3


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd one by one": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scheduled_learning_rate_does_not_compile_each_step_anew(name: str) -> None:
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = copy.deepcopy(reference).to("tpu")
    graphs = []
    inputs = [torch.randn(5, 3) for _ in range(12)]

    def train(model: nn.Module, device: str) -> None:
        optimizer = OPTIMIZERS[name](model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        function = torch.compile(step, backend="tpu") if device == "tpu" else step
        for x in inputs:
            function(x.to(device))
            schedule.step()
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    train(reference, "cpu")
    train(model, "tpu")
    assert graphs[-1] == graphs[-8], graphs[-12:]
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=1e-5)


def test_an_optimizer_that_is_half_made_is_none_of_a_step() -> None:
    half = torch.optim.Adam.__new__(torch.optim.Adam)
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    function = torch.compile(step, backend="tpu")
    for _ in range(2):
        function(torch.randn(5, 3, device="tpu"))
    assert optimizer.state[model.weight]["step"].item() == 2
    assert not hasattr(half, "param_groups")


class Waits:
    """A plugin that counts how often the host waits for the device."""

    count = 0

    @hookimpl
    def torchtpu_host_wait(self, array: object) -> None:
        self.count += 1


@pytest.mark.parametrize("foreach", [True, False])
def test_step_counts_are_the_hosts_and_no_step_waits_for_the_device(foreach: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)
    x = torch.randn(5, 3, device="tpu")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    compiled = torch.compile(step, backend="tpu")
    for _ in range(3):
        compiled()
    torch.tpu.synchronize()
    waits = Waits()
    plugins.manager().register(waits)
    try:
        for _ in range(4):
            compiled()
    finally:
        plugins.manager().unregister(waits)
    assert waits.count == 0
    assert {optimizer.state[p]["step"].item() for p in model.parameters()} == {7.0}
