# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing in a compiled graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def test_recomputed_dropout_has_the_mask_of_the_forward_pass() -> None:
    linear = nn.Linear(8, 8).to("tpu")

    def region(z: Tensor) -> Tensor:
        return F.dropout(linear(z).relu() + torch.rand_like(z), 0.5)

    def plain(x: Tensor) -> Tensor:
        return region(x.sin()).square()

    def checkpointed(x: Tensor) -> Tensor:
        return checkpoint(region, x.sin(), use_reentrant=False).square()

    results = []
    compiled = torch.compile(checkpointed, backend="tpu", fullgraph=True)
    for function in (plain, checkpointed, compiled):
        x = torch.linspace(-1, 1, 32, device="tpu").view(4, 8).requires_grad_()
        torch.manual_seed(5)
        y = function(x)
        torch.rand(3, device="tpu")  # the generator moves on before the backward pass
        y.sum().backward()
        results.append((y.detach().cpu(), x.grad.cpu()))
    for actual in results[1:]:
        for a, e in zip(actual, results[0], strict=True):
            torch.testing.assert_close(a, e)
