# SPDX-License-Identifier: Apache-2.0
"""Calls for which PyTorch's meta kernels state no results, or fewer than the lowering has."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def _results(function):
    """What `function` gives on each device, on the host."""
    return [[t.detach().cpu() for t in function(device)] for device in ("cpu", "tpu")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_and_gradients_match_cpu(dtype):
    rows, weights = torch.randn(12, 8), torch.randn(3, 8, 8)
    ends = torch.tensor([4, 4, 12], dtype=torch.int32)

    def run(device):
        a = rows.to(device, dtype).detach().requires_grad_()
        b = weights.to(device, dtype).detach().requires_grad_()
        out = F.grouped_mm(a, b, offs=ends.to(device))
        out.square().sum().backward()
        return out, a.grad, b.grad

    expected, actual = _results(run)
    tolerance = {"rtol": 2**-7, "atol": 2**-4} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrence_without_biases_matches_cpu(cell):
    model, x = cell(3, 4, bias=False), torch.randn(5, 2, 3)

    def run(device):
        moved = model.to(device)
        out = moved(x.to(device))[0]
        return out, *torch.autograd.grad(out.square().sum(), list(moved.parameters()))

    expected, actual = _results(run)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("learns", "boolean"),
    [("query", True), ("key", True), ("query", False), ("key", False), ("mask", False)],
)
def test_attention_where_only_one_operand_learns_matches_cpu(learns, boolean):
    tensors = {"query": torch.randn(2, 2, 5, 8), "key": torch.randn(2, 2, 5, 8)}
    tensors["mask"] = torch.randn(2, 1, 5, 5)
    if boolean:
        tensors["mask"] = tensors["mask"] > -1

    def run(device):
        moved = {name: t.to(device) for name, t in tensors.items()}
        moved[learns].requires_grad_()
        query, key, mask = moved.values()
        out = F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        return out, *torch.autograd.grad(out.square().sum(), moved[learns])

    expected, actual = _results(run)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_unreduced_margin_loss_of_one_sample_has_no_dims():
    scores, labels = torch.tensor([0.1, 0.7, -0.4]), torch.tensor([2, 0, -1])

    def run(device):
        return [F.multilabel_margin_loss(scores.to(device), labels.to(device), reduction="none")]

    expected, actual = _results(run)
    assert actual[0].shape == ()
    torch.testing.assert_close(actual, expected)


def test_failure_of_an_op_the_cpu_lacks_is_not_reworded_as_missing_on_the_cpu():
    state = torch.zeros(2, 4, device="tpu")
    with pytest.raises(Exception) as caught:
        torch._thnn_fused_lstm_cell(state, state, state)
    assert "'CPU' backend" not in str(caught.value)


@pytest.mark.parametrize("exponent", [True, False, 2, 0.5])
def test_power_of_bools_has_cpus_dtype_and_layout(exponent):
    bools = torch.tensor([[True, False, True], [False, False, True]]).t()
    expected, actual = bools.pow(exponent), bools.to("tpu").pow(exponent)
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_a_module_in_eval_mode_has_weights_only_if_asked(need_weights):
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected, weights = attention(x, x, x, need_weights=need_weights)
        moved = x.to("tpu")
        actual, own_weights = attention.to("tpu")(moved, moved, moved, need_weights=need_weights)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert (own_weights is None) == (weights is None)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_nansum_over_an_empty_list_of_dims_sums_all_as_on_cpu(keepdim, dtype):
    x = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 4.0, 5.0]])

    def run(device):
        moved = x.to(device)
        yield torch.nansum(moved, [], keepdim, dtype=dtype)
        yield torch.nansum(moved, 1, keepdim, dtype=dtype)

    expected, actual = _results(run)
    torch.testing.assert_close(actual, expected)
