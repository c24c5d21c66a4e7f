# SPDX-License-Identifier: Apache-2.0
"""Trains a model of `steps/` for three steps; the command says batch, dtype and optimizer."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adam")
    given = parser.parse_args()
    given.dtype = getattr(torch, given.dtype)
    return given


def train(model: nn.Module, given: argparse.Namespace, loss: Callable[[nn.Module], Tensor]) -> None:
    """Three steps; ``loss`` draws the batch and returns a scalar."""
    model = model.to("tpu", given.dtype)
    optimizer = OPTIMIZERS[given.optimizer](list(model.parameters()))
    for _ in range(3):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
