# SPDX-License-Identifier: Apache-2.0
"""Copies of parts at open sizes: one program each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchtpu_compile import bounded_program


def _inner_rows(x: Tensor) -> Tensor:
    return torch.narrow_copy(x, 0, 1, x.shape[0] - 2).cumsum(0)


def _turned(x: Tensor) -> Tensor:
    return torch.permute_copy(x, (1, 0)) @ x


def _of_numbers(x: Tensor) -> Tensor:
    written = x.clone()
    written[1:].narrow(1, 1, 2).copy_(0.5)  # type: ignore[arg-type]
    written[0].copy_(x.shape[0])  # type: ignore[arg-type]
    return written.cumsum(0)


@pytest.mark.parametrize("function", [_inner_rows, _turned, _of_numbers])
def test_one_program_serves_all_sizes(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    refused = dict(bounded_program.reasons)
    for n in (5, 9, 14):
        x = torch.linspace(-1, 1, n * n).reshape(n, n)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x))
    assert bounded_program.reasons == refused
