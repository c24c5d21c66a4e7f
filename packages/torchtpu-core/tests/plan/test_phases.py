# SPDX-License-Identifier: Apache-2.0
"""Which operators of a backward pass a plan calls recomputation."""

from __future__ import annotations

import json

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


CLIPPED = """
import torch

weight = torch.nn.Parameter(torch.randn(64, 64, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)

for _ in range(2):
    for _ in range(2):  # the second forward pass follows a backward pass, too
        (torch.randn(64, 64, device="tpu") @ weight).tanh().square().sum().backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    optimizer.step()
"""


def test_what_is_done_to_gradients_before_the_optimizer_is_no_forward_pass(
    planned, tmp_path
) -> None:
    planned(CLIPPED, "--trace", "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    phases = [(one["cat"], one["name"]) for one in events if "cat" in one]
    assert [name for phase, name in phases if phase == "gradients"] == ["mul_"]
    # Both are forward passes: the first backward pass ends no step.
    assert [phase for phase, name in phases if name == "randn"] == ["forward"] * 2


CLOSURE = """
import torch

weight = torch.nn.Parameter(torch.randn(64, 64, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

def closure():
    optimizer.zero_grad()
    loss = (torch.randn(64, 64, device="tpu") @ weight).square().sum()
    loss.backward()
    return loss

for _ in range(2):
    optimizer.step(closure=closure)
"""


def test_closure_of_an_optimizer_is_no_part_of_its_work(planned) -> None:
    plan = planned(CLOSURE)
    assert "forward: matmul" in plan["said"]
    assert "backward: matmul" in plan["said"]
    assert "optimizer: matmul" not in plan["said"]
    assert plan["hbm"]["at_peak"]["gradients"] == 64 * 64 * 4
