# SPDX-License-Identifier: Apache-2.0
"""A step that fails inside a program leaves what it would have written as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torchtpu_eager import fused

pytestmark = pytest.mark.usefixtures("compiles_at_once")

#: Elements of a side whose square no simulated chip holds.
TOO_LONG = 200_000


@pytest.fixture
def _op_by_op() -> Iterator[None]:
    """A program of a whole stream does without the large tensor."""
    before = fused.configure(at_first_sight=0)
    yield
    fused.configure(at_first_sight=before.at_first_sight)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, fails: bool = False
) -> float:
    y = model(x)
    if fails:
        y = y + torch.ones(TOO_LONG, TOO_LONG, device=x.device).sum()
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach().item()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_step_that_runs_out_of_memory_leaves_the_model_and_training_goes_on(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to("tpu")
    optimizer = kind(model.parameters(), lr=0.01)
    x = torch.randn(16, 4).to("tpu")
    for _ in range(4):
        last = step(model, optimizer, x)
    before = [p.detach().cpu() for p in model.parameters()]
    with pytest.raises(torch.OutOfMemoryError, match=r"test_failed_steps\.py:"):
        step(model, optimizer, x, fails=True)
    decayed = 1.0 - 0.01 * optimizer.defaults["weight_decay"]  # AdamW's own operator, which did run
    for p, value in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach().cpu(), value * decayed)
    assert step(model, optimizer, x) < last


@pytest.mark.usefixtures("_op_by_op")
def test_what_depends_on_a_failed_write_in_its_stream_has_no_value():
    total, after = torch.ones(3, device="tpu"), torch.zeros(3, device="tpu")
    total.add_(torch.ones(TOO_LONG, TOO_LONG, device="tpu").sum())
    copy = total * 2
    after += total
    part = after[1:]
    part.mul_(copy[0])
    with pytest.raises(torch.OutOfMemoryError):
        torch.tpu.synchronize()
    assert (total.tolist(), after.tolist()) == ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert (total + 1).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="no value"):
        copy.tolist()


@pytest.mark.usefixtures("_op_by_op")
def test_writes_before_the_failed_one_hold():
    total = torch.ones(3, device="tpu")
    total.mul_(4)
    total[:2].add_(torch.ones(TOO_LONG, TOO_LONG, device="tpu").sum())
    total.neg_()
    with pytest.raises(torch.OutOfMemoryError):
        torch.tpu.synchronize()
    assert total.tolist() == [4.0, 4.0, 4.0]
