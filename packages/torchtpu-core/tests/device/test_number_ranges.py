# SPDX-License-Identifier: Apache-2.0
"""Numbers that a dtype cannot hold are refused where CPU PyTorch refuses them, and only there."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

CALLS = {
    "fill_": lambda x, c: x.clone().fill_(c),
    "masked_fill": lambda x, c: x.masked_fill(x > 0, c),
    "masked_fill_": lambda x, c: x.clone().masked_fill_(x > 0, c),
    "index_fill": lambda x, c: x.index_fill(0, torch.tensor([0, 1], device=x.device), c),
    "full_like": lambda x, c: torch.full_like(x, c),
    "new_full": lambda x, c: x.new_full((2,), c),
    "full": lambda x, c: torch.full((2,), c, dtype=x.dtype, device=x.device),
    "full of its own dtype": lambda x, c: torch.full((2,), c, device=x.device),
    "fill_diagonal_": lambda x, c: x.clone().fill_diagonal_(c),
    "scatter": lambda x, c: x.scatter(0, torch.zeros(1, 2, dtype=torch.long, device=x.device), c),
    "constant_pad_nd": lambda x, c: torch.constant_pad_nd(x, (1, 1), c),
    "threshold": lambda x, c: F.threshold(x, 1, c),
    "hardtanh": lambda x, c: torch.ops.aten.hardtanh(x, 0, c),
    "clamp": lambda x, c: x.clamp(0, c),
    "index_add": lambda x, c: x.index_add(0, torch.tensor([0, 1], device=x.device), x[:2], alpha=c),
    "addcmul": lambda x, c: x.addcmul(x, x, value=c),
    "lerp": lambda x, c: x.lerp(x, c),
    "addmm": lambda x, c: torch.addmm(x[:3, :3], x, x.t(), alpha=c, beta=c),
    "add": lambda x, c: x + c,
    "mul_": lambda x, c: x.clone().mul_(c),
    "eq": lambda x, c: x == c,
}
NUMBERS = (300, -1, 2**40, 1.5, 1e9, 1e39, float("nan"), float("-inf"), True, 1 + 1j)
DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)


def _outcome(call, x, number):
    try:
        return call(x, number).cpu()
    except (RuntimeError, TypeError) as error:
        return error


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_refused_as_on_cpu(name, dtype):
    x = torch.tensor([[1, 2], [3, 0], [0, 4]]).to(dtype)
    for number in NUMBERS:
        expected, actual = (_outcome(CALLS[name], x.to(d), number) for d in ("cpu", "tpu"))
        no_kernel = isinstance(expected, NotImplementedError)  # here there is one
        if getattr(expected, "dtype", None) == torch.complex32:
            continue  # a dtype that the device does not have
        if isinstance(expected, Exception) and not no_kernel:
            assert isinstance(actual, RuntimeError), (number, expected, actual)
            if "without overflow" in str(expected):
                assert "value cannot be converted to type" in str(actual)
        elif not no_kernel:
            torch.testing.assert_close(actual, expected, equal_nan=True)


def test_the_argument_that_does_not_fit_is_named():
    x = torch.zeros(2, dtype=torch.uint8, device="tpu")
    with pytest.raises(
        RuntimeError, match=r"overflow: 300 \(argument 'value' of aten::fill_.Scalar"
    ):
        x.fill_(300)
    assert x.cpu().equal(torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("number", [1.5, 1 + 1j, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_lists_are_not_written_with_what_their_dtype_cannot_hold(name, dtype, number):
    def call(x, number):
        lists = [x.clone(), x + x]
        getattr(torch, f"_foreach_{name}")(lists, number)
        return lists[1]

    x = torch.tensor([1, 2, 3]).to(dtype)
    expected, actual = (_outcome(call, x.to(d), number) for d in ("cpu", "tpu"))
    assert type(actual) is type(expected), (expected, actual)
    if isinstance(expected, Exception):
        assert str(expected) in str(actual)
    else:
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("exponent", [1 + 1j, 0.5, 2.5, 3 - 2j])
def test_zero_to_a_complex_power_is_zero(exponent):
    x = torch.tensor([0j, 1 + 1j])
    for function in (lambda y: y**exponent, lambda y: y ** torch.full_like(y, exponent)):
        torch.testing.assert_close(function(x.to("tpu")).cpu(), function(x))
