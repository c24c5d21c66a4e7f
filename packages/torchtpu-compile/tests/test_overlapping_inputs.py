# SPDX-License-Identifier: Apache-2.0
"""Written inputs that overlap others, which AOTAutograd joins, or that change places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_returned_inputs_lie_where_they_lay(backend: str, dynamic: bool) -> None:
    def write(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a.add_(1)
        return a + b, b.mul_(2), a

    function = torch.compile(write, backend=backend, dynamic=dynamic)
    for n in (6, 9):
        base = torch.randn(n)
        on_device = base.to("tpu")
        expected = write(base[: n - 2], base[2:])
        actual = function(on_device[: n - 2], on_device[2:])
        for a, e in zip(actual, expected, strict=True):
            assert (a.stride(), a.storage_offset()) == (e.stride(), e.storage_offset())
            torch.testing.assert_close(a.cpu(), e)
        for written in (actual[1], expected[1]):
            written.zero_()
        torch.testing.assert_close(on_device.cpu(), base)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_inputs_change_places(backend: str) -> None:
    def swap(a: Tensor, b: Tensor) -> Tensor:
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
        return a - b

    ones, zeros = torch.ones(2, device="tpu"), torch.zeros(2, device="tpu")
    difference = torch.compile(swap, backend=backend)(ones, zeros)
    assert [t.tolist() for t in (difference, ones, zeros)] == [[-1, -1], [0, 0], [1, 1]]
