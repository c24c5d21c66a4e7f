# SPDX-License-Identifier: Apache-2.0
"""Assertions in compiled functions that return nothing new."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def nothing(x: Tensor) -> None:
    torch._assert_async(x.sum() > 100, "too small")


def its_input(x: Tensor) -> Tensor:
    torch._assert_async(x.sum() > 100, "too small")
    return x


def of_an_input(x: Tensor) -> None:
    torch._assert_async(x[0, 0] > 100, "too small")


def an_input(x: Tensor) -> None:
    torch._assert_async(x, "too small")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("check", [nothing, its_input, of_an_input])
def test_failed_assertion_is_reported_without_results(
    check: Callable[[Tensor], Tensor | None], backend: str, dynamic: bool
) -> None:
    function = torch.compile(check, backend=backend, dynamic=dynamic)
    function(torch.full((3, 4), 101.0, device="tpu"))
    torch.tpu.synchronize()
    function(torch.zeros(3, 4, device="tpu"))
    with pytest.raises(RuntimeError, match="too small"):
        torch.tpu.synchronize()


def test_failed_assertion_of_an_argument_is_reported() -> None:
    function = torch.compile(an_input, backend="tpu")
    function(torch.tensor(True, device="tpu"))
    torch.tpu.synchronize()
    function(torch.tensor(False, device="tpu"))
    with pytest.raises(RuntimeError, match="too small"):
        torch.tpu.synchronize()
