# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses that are made in compiled code, changed there, or taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor


def parts(value: Any) -> list[Tensor]:
    """The tensors that a result is made of, on the CPU."""
    if isinstance(value, TwoTensor):
        return [value.a.detach().cpu(), value.b.detach().cpu()]
    return [value.detach().cpu()]


def written(x: Tensor) -> Any:
    """A pair, one part of which was changed after it was made."""
    pair = TwoTensor(x * 2, x + 1)
    pair.mul_(3)
    return pair


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function", [lambda x: TwoTensor(x * 2, x + 1), lambda x: TwoTensor(x.exp(), x) * x, written]
)
def test_pair_made_of_plain_tensors_is_a_pair(
    function: Callable[[Tensor], Any], dynamic: bool, backend: str
) -> None:
    x = torch.arange(6.0).view(2, 3)
    actual = torch.compile(function, backend=backend, dynamic=dynamic)(x.to("tpu"))
    expected = function(x)
    assert type(actual) is TwoTensor
    torch.testing.assert_close(parts(actual), parts(expected))
