# SPDX-License-Identifier: Apache-2.0
"""An ``out=`` of another dtype than the functional form would return."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

X = torch.rand(8, 32, generator=torch.Generator().manual_seed(0))
REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda x, out: torch.sum(x, 1, out=out),
    "nansum": lambda x, out: torch.nansum(x, 1, out=out),
    "mean": lambda x, out: torch.mean(x, 1, out=out),
    "prod": lambda x, out: torch.prod(x, 1, out=out),
    "var": lambda x, out: torch.var(x, 1, out=out),
    "std": lambda x, out: torch.std(x, 1, out=out),
}
SCANS: dict[str, Callable[..., torch.Tensor]] = {
    "cumsum": lambda x, out: torch.cumsum(x, 1, out=out),
    "cumprod": lambda x, out: torch.cumprod(x, 1, out=out),
}


def _both(
    call: Callable[..., torch.Tensor], x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    expected = call(x, torch.empty(shape, dtype=dtype))
    found = call(x.to("tpu"), torch.empty(shape, dtype=dtype, device="tpu"))
    return found.cpu(), expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*REDUCTIONS, *SCANS])
def test_16_bit_operand_is_not_rounded_before_a_wider_out(name: str, dtype: torch.dtype) -> None:
    call = REDUCTIONS.get(name) or SCANS[name]
    shape = (8,) if name in REDUCTIONS else (8, 32)
    torch.testing.assert_close(*_both(call, X.bfloat16(), shape, dtype), rtol=1e-5, atol=0)


def test_logsumexp_of_16_bits_into_float32_is_not_rounded() -> None:
    out = torch.empty(8, device="tpu")
    torch.logsumexp(X.bfloat16().to("tpu"), 1, out=out)
    torch.testing.assert_close(out.cpu(), torch.logsumexp(X.bfloat16().float(), 1))


def test_integers_are_multiplied_in_the_dtype_of_a_floating_out() -> None:
    whole = (X[:, :12] * 90).int() + 9
    torch.testing.assert_close(*_both(REDUCTIONS["prod"], whole, (8,), torch.float64))


def test_floats_are_cut_off_before_they_add_up_in_an_integer_out() -> None:
    torch.testing.assert_close(*_both(REDUCTIONS["sum"], X * 9, (8,), torch.int64))


@pytest.mark.parametrize("name", ["amax", "amin", "softmax", "log_softmax", "logcumsumexp"])
def test_out_of_a_dtype_that_cpu_refuses_is_refused(name: str) -> None:
    arguments = (X.to("tpu"), 1)
    out = torch.empty(0, dtype=torch.float64, device="tpu")
    with pytest.raises(RuntimeError, match=r"(?i)dtype|scalar_type"):
        getattr(torch, name)(*arguments, out=out)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_spread_of_integers_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="only support floating point"):
        getattr(torch, name)(torch.ones(3, dtype=torch.int32, device="tpu"))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_logcumsumexp_of_integers_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(NotImplementedError, match="logcumsumexp"):
        torch.logcumsumexp(torch.ones(3, dtype=dtype, device="tpu"), 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["abs", "angle"])
def test_real_result_of_complex_numbers_is_cast_to_the_dtype_of_out(
    name: str, dtype: torch.dtype
) -> None:
    def call(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, out=out)

    numbers = torch.complex(X, -X)
    torch.testing.assert_close(*_both(call, numbers, (8, 32), dtype), rtol=1e-3, atol=1e-5)


def test_absolute_floats_do_not_fit_an_integer_out() -> None:
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.abs(X.to("tpu"), out=torch.empty(8, 32, dtype=torch.int64, device="tpu"))
