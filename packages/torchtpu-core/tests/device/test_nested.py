# SPDX-License-Identifier: Apache-2.0
"""Nested tensors: jagged ones, and strided ones, on which PyTorch computes their attention."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close


def _rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 6, generator=generator) for n in (3, 5, 1)]


def _gradients(function, rows, device, layout):
    rows = [row.to(device).requires_grad_() for row in rows]
    nested = torch.nested.as_nested_tensor(rows, layout=layout)
    result = function(nested)
    pieces = result.unbind() if result.is_nested else [result]
    sum((piece.float() ** 2).sum() for piece in pieces).backward()
    return [piece.detach().cpu() for piece in pieces], [row.grad.cpu() for row in rows]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_jagged_rows_equals_the_cpu(causal):
    def attention(nested):
        heads = nested.unflatten(-1, [2, 3]).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)

    try:
        expected = _gradients(attention, _rows(), "cpu", torch.jagged)
    except RuntimeError as refused:  # PyTorch has no causal mask for nested math
        with pytest.raises(RuntimeError, match=str(refused)[:20]):
            _gradients(attention, _rows(), "tpu", torch.jagged)
        return
    assert_close(_gradients(attention, _rows(), "tpu", torch.jagged), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + x,
        torch.relu,
        F.gelu,
        F.silu,
        lambda x: x.transpose(1, 2).matmul(x),
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, (6,), *torch.linspace(0, 1, 12).view(2, 6).to(x.device)),
        lambda x: F.linear(
            x, torch.ones(4, 6, device=x.device) / 6, torch.ones(4, device=x.device)
        ),
        lambda x: x.to_padded_tensor(0.5),
        lambda x: x.to_padded_tensor(0.5, (3, 7, 6)),
        lambda x: x.clone().mul_(3),
        lambda x: x[1],
    ],
)
def test_strided_rows_equal_the_cpu(function):
    expected = _gradients(function, _rows(), "cpu", torch.strided)
    assert_close(_gradients(function, _rows(), "tpu", torch.strided), expected)


def test_copies_between_devices_keep_rows_and_dtype():
    nested = torch.nested.nested_tensor(_rows())
    there = nested.to("tpu", torch.bfloat16)
    assert there.is_tpu and there.dtype == torch.bfloat16
    for row, expected in zip(there.cpu().unbind(), _rows(), strict=True):
        assert torch.equal(row, expected.bfloat16())


def test_operator_without_a_kernel_is_refused_with_a_way_out():
    nested = torch.nested.nested_tensor(_rows(), device="tpu")
    with pytest.raises(NotImplementedError, match=r"jagged|on the CPU"):
        torch.sort(nested)
