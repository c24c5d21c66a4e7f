# SPDX-License-Identifier: Apache-2.0
"""Compiled autograd whose sizes are all open: values, paddings and numbers are operands."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

ROWS = torch.tensor([0, 0, 2])
MODELS = {
    # The factor is saved as the tensor of a plain number.
    "a saved number": (lambda m, x: x * 2 * m.weight, nn.Linear(4, 5), (5, 4)),
    # Sizes of tensors come as those of empty CPU tensors.
    "parts of a tensor": (
        lambda m, x: x[1:3].sum() + x[ROWS.to(x.device)].square() + x.view(-1)[::2].sum(),
        nn.Identity(),
        (5, 4),
    ),
    # Paddings come as open sizes, and the gradient of a norm is not zero in padding.
    "a normalised convolution": (
        lambda m, x: m(x),
        nn.Sequential(nn.Conv2d(3, 2, 3, bias=False), nn.BatchNorm2d(2)),
        (2, 3, 6, 6),
    ),
    "a padded convolution": (
        lambda m, x: m(x),
        nn.Sequential(nn.Conv2d(3, 2, 3, 2, padding=2, bias=False), nn.BatchNorm2d(2)),
        (2, 3, 7, 7),
    ),
    "layers": (lambda m, x: m(x), nn.Sequential(nn.Linear(4, 5), nn.Tanh()), (5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_cpu(name: str) -> None:
    function, host, shape = MODELS[name]
    x = torch.randn(shape)
    expected = _gradients(function, deepcopy(host), x)
    compiler = torch._dynamo.compiled_autograd._enable(
        lambda graph: torch.compile(graph, backend="tpu", dynamic=True)
    )
    with compiler:
        actual = _gradients(function, deepcopy(host).to("tpu"), x.to("tpu"))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def _gradients(
    function: Callable[[nn.Module, Tensor], Tensor], module: nn.Module, x: Tensor
) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    function(module, leaf).sin().sum().backward()
    return [p.grad for p in (leaf, *module.parameters()) if p.grad is not None]
