# SPDX-License-Identifier: Apache-2.0
"""What the comparisons with one CPU process share: a network, its data, and steps of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

Tensor = torch.Tensor
#: What the ranks computed, and what one CPU process computes from the whole batch.
Pair = tuple[list[Tensor], list[Tensor]]


class Net(nn.Module):
    """Three linear layers of odd sizes, one of which a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 10)
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        """`(rows, 6)` to `(rows, 3)`."""
        x = torch.tanh(self.first(x))
        return self.last(x if skip else torch.relu(self.second(x)))


def net() -> Net:
    """The same network on every call."""
    torch.manual_seed(3)
    return Net()


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs `(8, 6)` and targets `(8, 3)` on the CPU."""
    generator = torch.Generator().manual_seed(5 + number)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def share(x: Tensor, ranks: int | None = None, rank: int | None = None) -> Tensor:
    """This rank's rows, on its device."""
    return x.chunk(ranks or dist.get_world_size())[dist.get_rank() if rank is None else rank].to(
        "tpu"
    )


def loss_of(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(model(x, **options), y)


def whole(value: Tensor) -> Tensor:
    """A tensor or DTensor as a full CPU tensor."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().float().cpu()


def trained(model: nn.Module, step: Callable[[int], Tensor], count: int = 2) -> list[Tensor]:
    """Parameters after some steps of SGD on the gradients of `step(number)`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(count):
        optimizer.zero_grad()
        loss = step(number)
        if loss is not None:
            loss.backward()
        optimizer.step()
    return [whole(p) for p in model.parameters()]


def expected(count: int = 2, **options: Any) -> list[Tensor]:
    """What one CPU process gets."""
    model = net()
    return trained(model, lambda n: loss_of(model, *batch(n), **options), count)


def distributed(model: nn.Module, wrapped: nn.Module, **options: Any) -> list[Tensor]:
    """What the ranks get, each from its rows."""
    return trained(model, lambda n: loss_of(wrapped, *map(share, batch(n)), **options))
