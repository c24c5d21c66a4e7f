# SPDX-License-Identifier: Apache-2.0
"""Python ints that loops carry and branches give, in compiled graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program


def _by_python(condition, body, state):
    while condition(*state):
        state = body(*state)
    return state


def _rows(x: Tensor, loop=while_loop) -> tuple[int, int, Tensor]:
    def body(i, k, total):
        row = x[i] * k + x[-1 - i].clamp(min=i - 1)
        return i + 1, k * 2 - i // 2, total.select_scatter(row, 0, i)

    start = 0, x.shape[0], torch.zeros_like(x)
    return loop(lambda i, k, total: i < x.shape[0], body, start)


def _nested(x: Tensor, loop=while_loop) -> tuple[Tensor, int]:
    def body(i, x):
        return i + 1, loop(lambda k, y: k < i, lambda k, y: (k + 1, y + k), (0, x))[1] * 0.5

    i, y = loop(lambda i, x: i < 4, body, (0, x))
    return y / i, i * 2


def _chosen(x: Tensor, loop=None) -> tuple[Tensor, int]:
    y, k = torch.cond(x.sum() > 0, lambda x: (x + 1, 1), lambda x: (x - 1, 2), (x,))
    return y * k, k


@pytest.mark.parametrize("function", (_rows, _nested, _chosen))
def test_numbers_of_control_flow_are_part_of_its_one_program(function) -> None:
    at_all_sizes = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    bounded_program.reasons.clear()
    for step, n in enumerate((5, 7)):
        x = torch.randn(n, 3)
        y = x.to("tpu")
        torch.tpu.synchronize()
        before = torch.tpu.counters()
        actual = tree_leaves(at_all_sizes(y))
        torch.tpu.synchronize()
        after = torch.tpu.counters()
        assert after["runs"] - before["runs"] == 1
        assert after["compiles"] - before["compiles"] == (step == 0)
        for a, e in zip(actual, tree_leaves(function(x, _by_python)), strict=True):
            assert isinstance(a, Tensor) == isinstance(e, Tensor)
            torch.testing.assert_close(a.cpu() if isinstance(a, Tensor) else a, e)
    assert not bounded_program.reasons


def test_number_of_a_loop_may_be_a_size() -> None:
    def function(x: Tensor, loop=while_loop) -> Tensor:
        def body(i, x):  # the host runs a loop whose ops have such sizes
            return i + 1, x + torch.ones(i + 1, device=x.device).sum()

        i, x = loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + i), (0, x))
        return loop(lambda i, x: i < 2, body, (0, x))[1] + torch.ones(i, device=x.device)[0]

    x = torch.randn(3)
    actual = torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu"))
    torch.testing.assert_close(actual.cpu(), function(x, _by_python))


def test_row_beyond_the_last_within_a_loop_is_an_error() -> None:
    def function(x: Tensor) -> Tensor:
        return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y + x[i]), (0, x[0] * 0))[1]

    with pytest.raises(IndexError):
        torch.compile(function, backend="tpu", fullgraph=True)(torch.ones(3, 2, device="tpu")).cpu()
