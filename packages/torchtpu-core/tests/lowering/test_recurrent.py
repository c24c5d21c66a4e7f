# SPDX-License-Identifier: Apache-2.0
"""The fused LSTM and GRU cells against the unfused cells of CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering.recurrent import TABLE
from torchtpu_core.testing.lowering import assert_close, lower

_GENERATOR = torch.Generator().manual_seed(0)
B, H, F = 3, 5, 4


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def run(overload: str, *arguments: Any) -> Any:
    return lower(next(r for r in TABLE if r.overload == overload), arguments, {})


def gates(cell: torch.nn.RNNCellBase, x: Tensor, h: Tensor) -> list[Tensor]:
    """Input and hidden gates without their biases, as leaves."""
    products = x @ cell.weight_ih.detach().t(), h @ cell.weight_hh.detach().t()
    return [p.requires_grad_() for p in products]


def through_identity(cell: torch.nn.RNNCellBase, gate: list[Tensor], state: Any, bias: bool) -> Any:
    """The cell's step on given gates: with unit weights the gates are its inputs."""
    width = gate[0].shape[1]
    biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
    if isinstance(cell, torch.nn.LSTMCell):
        total = gate[0] + gate[1] + sum(b for b in biases if b is not None)
        i, f, g, o = total.chunk(4, 1)
        cy = f.sigmoid() * state + i.sigmoid() * g.tanh()
        return o.sigmoid() * cy.tanh(), cy
    inputs, hiddens = (g if b is None else g + b for g, b in zip(gate, biases, strict=True))
    third = width // 3
    r, z = (inputs + hiddens)[:, : 2 * third].sigmoid().chunk(2, 1)
    n = (inputs[:, 2 * third :] + r * hiddens[:, 2 * third :]).tanh()
    return (n + z * (state - n),)


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell_and_gradients_equal_cpu(bias: bool) -> None:
    cell = torch.nn.LSTMCell(F, H, bias)
    x, h, c = rand(B, F), rand(B, H), rand(B, H).requires_grad_()
    gate = gates(cell, x, h)
    biases = [cell.bias_ih, cell.bias_hh] if bias else []
    hy, cy, workspace = run("aten::_thnn_fused_lstm_cell", *gate, c, *(biases or (None, None)))
    assert_close([hy, cy], [t.detach() for t in cell(x, (h, c))])

    out = through_identity(cell, gate, c, bias)
    grads = rand(B, H), rand(B, H)
    expected = torch.autograd.grad(out, [gate[0], c, *biases[:1]], grads)
    arguments = (*grads, c, cy, workspace, bias)
    actual = run("aten::_thnn_fused_lstm_cell_backward_impl", *arguments)
    assert_close(actual[: len(expected)], list(expected))
    only = torch.autograd.grad(through_identity(cell, gate, c, bias)[0], gate[0], grads[0])
    arguments = (grads[0], None, c, cy, workspace, bias)
    assert_close(run("aten::_thnn_fused_lstm_cell_backward_impl", *arguments)[0], only[0])


@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell_and_gradients_equal_cpu(bias: bool) -> None:
    cell = torch.nn.GRUCell(F, H, bias)
    x, h = rand(B, F), rand(B, H).requires_grad_()
    gate = gates(cell, x, h.detach())
    biases = [cell.bias_ih, cell.bias_hh] if bias else []
    hy, workspace = run("aten::_thnn_fused_gru_cell", *gate, h, *(biases or (None, None)))
    assert_close(hy, cell(x, h).detach())

    grad = rand(B, H)
    out = through_identity(cell, gate, h, bias)[0]
    expected = torch.autograd.grad(out, [*gate, h, *biases], grad)
    actual = run("aten::_thnn_fused_gru_cell_backward", grad, workspace, bias)
    assert_close(actual[: len(expected)], list(expected))
