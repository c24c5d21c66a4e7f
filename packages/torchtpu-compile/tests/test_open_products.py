# SPDX-License-Identifier: Apache-2.0
"""Cumulative products at open sizes, and pieces whose size a guard fixes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torchtpu_compile import bounded_program


def _samples(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`(5, n)`; rows with zeros in no place, in one, in two and in the first."""
    x = torch.randn(5, n, dtype=dtype)
    x[1, 2] = x[2, 1] = x[2, 3] = x[3, 0] = x[4, -1] = 0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_gradient_of_cumulative_products_is_one_graph_for_all_lengths(dtype: torch.dtype) -> None:
    counter = CompileCounterWithBackend("tpu")
    compiled = torch.compile(lambda x: x.cumprod(-1), backend=counter, dynamic=True)
    for n in (6, 9, 14):
        x = _samples(n, dtype).requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        slope = torch.randn(5, n, dtype=dtype)
        x.cumprod(-1).backward(slope)
        compiled(on_device).backward(slope.to("tpu"))
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


def test_cumulative_product_converts_before_derivatives_at_open_sizes() -> None:
    compiled = torch.compile(
        lambda x: x.cumprod(0, dtype=torch.float32), backend="tpu", dynamic=True
    )
    for n in (5, 9):
        x = _samples(n).mT.bfloat16().requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        x.cumprod(0, dtype=torch.float32).sum().backward()
        compiled(on_device).sum().backward()
        assert on_device.grad.dtype == torch.bfloat16
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-2, atol=1e-2)


def test_second_derivative_of_cumulative_products_of_open_length_is_that_of_the_cpu() -> None:
    def function(x: Tensor) -> Any:
        def once(y: Tensor) -> Tensor:
            return torch.func.grad(lambda z: z.cumprod(-1).square().sum())(y).square().sum()

        return torch.func.grad(once)(x)

    x = _samples(6)
    found = torch.compile(function, backend="tpu", dynamic=True)(x.to("tpu"))
    torch.testing.assert_close(found.cpu(), function(x), rtol=1e-4, atol=1e-4)


def test_last_piece_of_one_row_by_a_guard_runs_at_padded_sizes() -> None:
    """Of five rows in four pieces there are three, and the last has one: that is a guard."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        losses = [F.linear(piece, w, b).square().mean() for piece in x.chunk(4)]
        return torch.stack(losses).sum()

    operands = torch.randn(5, 6), torch.randn(3, 6), torch.randn(3)
    bounded_program.reasons.clear()
    found = []
    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for run, device in ((function, "cpu"), (compiled, "tpu")):
        leaves = [x.detach().to(device).requires_grad_() for x in operands]
        loss = run(*leaves)
        loss.backward()
        found.append([loss.detach().cpu(), *(x.grad.cpu() for x in leaves)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons
