# SPDX-License-Identifier: Apache-2.0
"""Which operators of a backward pass a plan calls recomputation."""

from __future__ import annotations

GRADIENTS = """
import torch

weight = torch.nn.Parameter(torch.randn(64, 64, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)

def loss(weight, x):
    return (x @ weight).tanh().square().sum()

for _ in range(2):
    x = torch.randn(64, 64, device="tpu", requires_grad=True)
    (slope,) = torch.autograd.grad(loss(weight, x), x, create_graph=True)
    slope.square().sum().backward()
    weight.grad += torch.func.grad(loss)(weight.detach(), x.detach())
    optimizer.step()
"""


def test_gradients_of_gradients_and_of_functions_are_none(planned) -> None:
    plan = planned(GRADIENTS)
    assert "backward: matmul" in plan["said"]
    assert "recompute" not in plan["said"].replace("HFU with recomputation", "")
