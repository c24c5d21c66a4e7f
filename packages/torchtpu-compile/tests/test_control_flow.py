# SPDX-License-Identifier: Apache-2.0
"""Higher-order ops in compiled graphs."""

from __future__ import annotations

import torch
from torch import Tensor


def compiled(function):
    return torch.compile(function, backend="tpu", fullgraph=True)


def test_while_loop_runs_until_its_condition_is_false() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def function(x: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))[1]

    x = torch.randn(3)
    torch.testing.assert_close(compiled(function)(x.to("tpu")).cpu(), x * 8)


def test_scan_carries_its_state() -> None:
    from torch._higher_order_ops.scan import scan

    def function(x: Tensor) -> Tensor:
        return scan(lambda c, row: (c + row, c * row), torch.zeros(3, device=x.device), x)[1]

    x = torch.randn(4, 3)
    before = torch.cat([torch.zeros(1, 3), x.cumsum(0)[:-1]])
    torch.testing.assert_close(compiled(function)(x.to("tpu")).cpu(), before * x)


def test_cond_has_the_gradient_of_the_branch_it_took() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * x, lambda x: x * 3, (x,))

    x = torch.full((3,), 2.0, device="tpu", requires_grad=True)
    compiled(function)(x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((3,), 4.0))
