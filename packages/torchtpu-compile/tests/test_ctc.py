# SPDX-License-Identifier: Apache-2.0
"""The CTC loss in graphs, where PyTorch breaks them, and at open sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile import bounded_program, eager_sizes

#: Time steps; those after the first two are of one bucket.
STEPS = (20, 23, 31, 40)


def operands(steps: int, joined: bool) -> tuple[Tensor, ...]:
    torch.manual_seed(steps)
    lengths, room = torch.randint(1, 6, (3,)), 5
    targets = torch.randint(1, 6, (int(lengths.sum()),) if joined else (3, room))
    times = torch.randint(steps // 2, steps + 1, (3,))
    return torch.randn(steps, 3, 6), targets, times, lengths


def agree(function: Callable[..., Tensor], compiled: Callable[..., Tensor], *given: Tensor) -> None:
    """Loss and gradient are those of the CPU."""
    x, *others = given
    y = x.detach().to("tpu").requires_grad_()
    x.requires_grad_()
    expected, actual = function(x, *others), compiled(y, *others)
    expected.sum().backward()
    actual.sum().backward()
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_one_graph_serves_all_lengths(device: str, reduction: str, joined: bool) -> None:
    """Lengths may be on the CPU; targets may be joined."""

    def loss(x: Tensor, targets: Tensor, times: Tensor, lengths: Tensor) -> Tensor:
        scores = x.log_softmax(-1)
        return F.ctc_loss(scores, targets, times, lengths, reduction=reduction, zero_infinity=True)

    traced = torch.compile(loss, backend="tpu", dynamic=True, fullgraph=True)

    def compiled(x: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
        return traced(x, targets.to("tpu"), *(n.to(device) for n in lengths))

    bounded_program.reasons.clear()
    for steps in STEPS:
        agree(loss, compiled, *operands(steps, joined))
    assert not bounded_program.reasons


def test_lengths_in_lists() -> None:
    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, (x.shape[0], x.shape[0] - 3, 9), (3, 2, 4))

    traced = torch.compile(loss, backend="tpu", dynamic=True, fullgraph=True)
    for steps in STEPS:
        x, targets, *_ = operands(steps, False)
        agree(loss, lambda x, t: traced(x, t.to("tpu")), x, targets)


def test_one_sequence_without_a_batch() -> None:
    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, torch.tensor(20), torch.tensor(4))

    traced = torch.compile(loss, backend="tpu", fullgraph=True)
    targets = torch.randint(1, 6, (4,))
    agree(loss, lambda x, t: traced(x, t.to("tpu")), torch.randn(20, 6), targets)


def test_lengths_that_cannot_be_are_refused() -> None:
    def loss(x: Tensor, targets: Tensor, times: Tensor, lengths: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, times, lengths)

    x, targets, _, lengths = (t.to("tpu") for t in operands(20, False))
    for dynamic in (False, True):
        traced = torch.compile(loss, backend="tpu", fullgraph=True, dynamic=dynamic)
        with pytest.raises(RuntimeError, match="Expected input_lengths"):
            traced(x, targets, torch.full((3,), 21, device="tpu"), lengths).cpu()


def test_eager_mode_runs_at_padded_sizes(compiles: Callable[[], int]) -> None:
    def loss(x: Tensor, targets: Tensor, times: Tensor, lengths: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, times, lengths, zero_infinity=True)

    def on_device(x: Tensor, *others: Tensor) -> Tensor:
        return loss(x, *(t.to("tpu") for t in others))

    eager_sizes.reasons.clear()
    for steps in (*STEPS, 21, 35, 28):
        agree(loss, on_device, *operands(steps, False))
        torch.tpu.synchronize()
    assert not [reason for reason in eager_sizes.reasons if "ctc" in reason]
