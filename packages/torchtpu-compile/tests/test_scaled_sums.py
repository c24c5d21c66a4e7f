# SPDX-License-Identifier: Apache-2.0
"""Plain `torch.compile` keeps the scale of a sum whose terms are matrix products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

SUMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "product second": lambda x, a, b: x.add(a @ b, alpha=0.1),
    "product first": lambda x, a, b: torch.add(a @ b, x, alpha=0.1),
    "two products": lambda x, a, b: torch.add(a @ b, b @ a, alpha=-0.5),
    "moving average": lambda x, a, b: x.mul(0.9).add_(a.t() @ b, alpha=0.1),
    "difference": lambda x, a, b: x.sub(a @ b, alpha=3),
    "plain": lambda x, a, b: x + a @ b,
}


@pytest.mark.parametrize("name", SUMS)
def test_scale_of_a_sum_with_a_product_is_kept(name: str) -> None:
    x, a, b = (torch.randn(6, 6) for _ in range(3))
    compiled = torch.compile(SUMS[name], fullgraph=True)
    found = compiled(*(t.to("tpu") for t in (x, a, b)))
    torch.testing.assert_close(found.cpu(), SUMS[name](x, a, b))


def test_scale_of_a_sum_is_kept_in_gradients_and_open_sizes() -> None:
    def adapted(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(x @ a, x @ b, alpha=0.25)

    compiled = torch.compile(adapted, fullgraph=True)
    a, b = torch.randn(6, 5), torch.randn(6, 5)
    for rows in (3, 4, 7):
        x = torch.randn(rows, 6)
        cpu = [t.detach().requires_grad_() for t in (x, a, b)]
        tpu = [t.detach().to("tpu").requires_grad_() for t in (x, a, b)]
        wanted, found = adapted(*cpu), compiled(*tpu)
        torch.testing.assert_close(found.cpu(), wanted)
        wanted.sum().backward()
        found.sum().backward()
        for expected, leaf in zip(cpu, tpu, strict=True):
            torch.testing.assert_close(leaf.grad.cpu(), expected.grad)
