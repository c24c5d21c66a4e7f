# SPDX-License-Identifier: Apache-2.0
"""Numbers that CPU PyTorch refuses by their value are refused after another one was taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torchtpu_core.runtime import cpu_errors
from torchtpu_core.runtime.number_ranges import NUMBERS

aten = torch.ops.aten
NAN, TOO_LARGE = float("nan"), 1e39
FLOAT, WHOLE, BYTE = torch.float32, torch.int64, torch.uint8


class Case(NamedTuple):
    """A call of a matrix and a number, one that is taken and some that are refused."""

    call: Callable[[torch.Tensor, float], object]
    taken: float
    refused: tuple[float, ...] = (TOO_LARGE,)
    dtype: torch.dtype = FLOAT


def _list(op: Callable[..., object], *more: object) -> Callable[[torch.Tensor, float], object]:
    return lambda x, c: op([x, x], *more, [c, 1.0] if "ScalarList" in str(op) else c)


def _two_lists(op: Callable[..., object]) -> Callable[[torch.Tensor, float], object]:
    return lambda x, c: op([x], [x], [x], c)


def _index(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device=x.device)


CASES: dict[str, tuple[Case, ...]] = {
    "aten::_foreach_add": (Case(lambda x, c: torch._foreach_add([x], [x], alpha=c), 2.0),),
    "aten::_foreach_addcdiv": (Case(_two_lists(torch._foreach_addcdiv), 2.0),),
    "aten::_foreach_addcmul": (
        Case(_two_lists(torch._foreach_addcmul), 2.0),
        Case(lambda x, c: torch._foreach_addcmul([x], [x], [x], [c]), 2.0),
    ),
    **{
        f"aten::_foreach_{name}": (
            Case(_list(getattr(aten, f"_foreach_{name}").Scalar), 2.0),
            Case(_list(getattr(aten, f"_foreach_{name}").ScalarList), 2.0),
        )
        for name in ("clamp_max", "clamp_min", "maximum", "minimum")
    },
    "aten::_foreach_sub": (Case(lambda x, c: torch._foreach_sub([x], [x], alpha=c), 2.0),),
    "aten::_unsafe_masked_index": (
        Case(lambda x, c: aten._unsafe_masked_index(x, x[:, 0] > 0, [_index(x)], c), 2.0),
    ),
    "aten::add": (
        Case(lambda x, c: torch.add(x, x, alpha=c), 2.0),
        Case(lambda x, c: x.add_(x, alpha=c), 2, (300,), BYTE),
    ),
    "aten::addbmm": (Case(lambda x, c: torch.addbmm(x, x[None], x[None], alpha=c), 2.0),),
    "aten::addcdiv": (Case(lambda x, c: x.addcdiv(x, x, value=c), 2.0),),
    "aten::addcmul": (Case(lambda x, c: x.addcmul(x, x, value=c), 2.0),),
    "aten::addmm": (
        Case(lambda x, c: torch.addmm(x, x, x, alpha=c), 2.0),
        Case(lambda x, c: torch.addmm(x, x, x, beta=c, out=torch.empty_like(x)), 2.0),
    ),
    "aten::addmv": (Case(lambda x, c: torch.addmv(x[0], x, x[0], beta=c), 2.0),),
    "aten::addr": (Case(lambda x, c: torch.addr(x, x[0], x[0], alpha=c), 2.0),),
    "aten::baddbmm": (Case(lambda x, c: torch.baddbmm(x[None], x[None], x[None], alpha=c), 2.0),),
    "aten::bernoulli": (
        Case(lambda x, c: x.bernoulli_(c), 0.5, (-1.0, 2.0, NAN)),
        Case(lambda x, c: torch.bernoulli(x, c), 0.5, (-1.0, 2.0)),
    ),
    "aten::cauchy": (Case(lambda x, c: x.cauchy_(0.0, c), 1.0, (0.0, -1.0)),),
    "aten::celu": (
        Case(torch.celu, 1.5, (0.0, TOO_LARGE)),
        Case(torch.celu_, 1.5, (0.0,)),
    ),
    "aten::clamp": (
        Case(lambda x, c: x.clamp(c, 500.0), 2.0),
        Case(lambda x, c: x.clamp(0, c), 2, (300,), BYTE),
    ),
    "aten::clamp_max": (Case(lambda x, c: x.clamp_max(c), 2.0),),
    "aten::clamp_min": (Case(lambda x, c: x.clamp_min_(c), 2.0),),
    "aten::constant_pad_nd": (Case(lambda x, c: torch.constant_pad_nd(x, (1, 1), c), 2.0),),
    "aten::div.Scalar_mode": (
        Case(lambda x, c: aten.div.Scalar_mode(x, c, rounding_mode="floor"), 2, (0,), WHOLE),
    ),
    "aten::div.Tensor_mode": (
        Case(lambda x, c: torch.div(x, c, rounding_mode="trunc"), 2, (0,), WHOLE),
    ),
    "aten::elu": (Case(torch.nn.functional.elu, 2.0),),
    "aten::elu_backward": (Case(lambda x, c: aten.elu_backward(x, c, 1, 1, False, x), 2.0),),
    "aten::exponential": (Case(lambda x, c: x.exponential_(c), 1.0, (0.0, -2.0)),),
    "aten::fake_quantize_per_tensor_affine_cachemask": (
        Case(lambda x, c: torch.fake_quantize_per_tensor_affine(x, 0.1, c, 0, 255), 1, (-1, 256)),
    ),
    "aten::fill": (Case(lambda x, c: x.fill_(c), 2.0), Case(torch.fill, 2, (300,), BYTE)),
    "aten::fill_diagonal": (Case(lambda x, c: x.fill_diagonal_(c), 2.0),),
    "aten::floor_divide": (
        Case(lambda x, c: x // c, 2, (0,), WHOLE),
        Case(lambda x, c: x.floor_divide_(c), 2, (0,), WHOLE),
    ),
    "aten::fmod": (Case(torch.fmod, 2, (0,), WHOLE),),
    "aten::full": (
        Case(lambda x, c: torch.full((2,), c, dtype=x.dtype, device=x.device), 2, (300,), BYTE),
    ),
    "aten::full_like": (Case(torch.full_like, 2.0),),
    "aten::geometric": (Case(lambda x, c: x.geometric_(c), 0.5, (0.0, 1.0, 2.0)),),
    "aten::hardshrink": (Case(torch.hardshrink, 0.7),),
    "aten::hardshrink_backward": (Case(lambda x, c: aten.hardshrink_backward(x, x, c), 0.7),),
    "aten::hardtanh": (
        Case(lambda x, c: aten.hardtanh(x, 0, c), 2.0),
        Case(lambda x, c: aten.hardtanh(x, c, 5), 2, (-3, 300), BYTE),
    ),
    "aten::hardtanh_backward": (Case(lambda x, c: aten.hardtanh_backward(x, x, 0, c), 2.0),),
    "aten::histc": (Case(lambda x, c: torch.histc(x, 3, 0, c), 2, (-1,)),),
    "aten::huber_loss": (
        Case(lambda x, c: torch.nn.functional.huber_loss(x, x, delta=c), 1.5, (0.0, -1.0, NAN)),
    ),
    "aten::index_add": (Case(lambda x, c: x.index_add(0, _index(x), x[:1], alpha=c), 2.0),),
    "aten::index_fill": (Case(lambda x, c: x.index_fill(0, _index(x), c), 2.0),),
    "aten::leaky_relu": (Case(torch.nn.functional.leaky_relu, 0.1),),
    "aten::leaky_relu_backward": (
        Case(lambda x, c: aten.leaky_relu_backward(x, x, c, False), 0.1),
    ),
    "aten::lerp": (
        Case(lambda x, c: torch.lerp(x, x, c), 0.3),
        Case(lambda x, c: x.lerp_(x, c), 0.3),
    ),
    "aten::log_normal": (Case(lambda x, c: x.log_normal_(0.0, c), 1.0, (0.0, -1.0)),),
    "aten::masked_fill": (Case(lambda x, c: x.masked_fill(x > 0, c), 2.0),),
    "aten::multi_margin_loss": (
        Case(lambda x, c: torch.nn.functional.multi_margin_loss(x[:1], _index(x), margin=c), 2.0),
    ),
    "aten::multi_margin_loss_backward": (
        Case(lambda x, c: aten.multi_margin_loss_backward(x[0, 0], x[:1], _index(x), 1, c), 2.0),
    ),
    "aten::native_dropout": (
        Case(lambda x, c: torch.native_dropout(x, c, True), 0.5, (-1.0, 2.0)),
    ),
    "aten::new_full": (Case(lambda x, c: x.new_full((2,), c), 2.0),),
    "aten::normal": (
        Case(lambda x, c: x.normal_(0.0, c), 1.0, (-1.0,)),
        Case(lambda x, c: torch.normal(x, c), 1.0, (-1.0,)),
        Case(lambda x, c: torch.normal(c, x), 1.0),
    ),
    "aten::normal_functional": (
        Case(lambda x, c: aten.normal_functional(x, 0.0, c), 1.0, (-1.0,)),
    ),
    "aten::pow": (
        Case(torch.pow, 5, (-7, -(2**40)), WHOLE),
        Case(lambda x, c: x.pow_(c), 5, (300, -7), BYTE),
    ),
    "aten::random.from": (
        Case(lambda x, c: x.random_(c, 9), 1, (9, 10), WHOLE),
        Case(lambda x, c: x.random_(0, c), 5, (257,), BYTE),
    ),
    "aten::random.to": (
        Case(lambda x, c: x.random_(c), 5, (0, -1), WHOLE),
        Case(lambda x, c: x.random_(c), 5, (257,), BYTE),
    ),
    "aten::remainder": (
        Case(torch.remainder, 2, (0,), WHOLE),
        Case(lambda x, c: x.remainder_(torch.tensor(c)), 2, (0,), WHOLE),
    ),
    "aten::renorm": (Case(lambda x, c: torch.renorm(x, 2, 0, c), 1.0, (-1.0,)),),
    "aten::rrelu_with_noise": (
        Case(lambda x, c: torch.nn.functional.rrelu(x, c, 0.5, training=True), 0.1, (0.7, NAN)),
    ),
    "aten::rsub": (Case(lambda x, c: torch.rsub(x, x, alpha=c), 2.0),),
    "aten::scatter": (Case(lambda x, c: x.scatter(0, _index(x)[None], c), 2.0),),
    "aten::segment_reduce": (
        Case(
            lambda x, c: torch.segment_reduce(
                x, "sum", lengths=_index(x) + 3, initial=c, unsafe=True
            ),
            2,
            (100_000,),
            torch.float16,
        ),
    ),
    "aten::smooth_l1_loss": (
        Case(lambda x, c: torch.nn.functional.smooth_l1_loss(x, x, beta=c), 1.5, (-1.0,)),
    ),
    "aten::softplus": (Case(torch.nn.functional.softplus, 2.0),),
    "aten::softplus_backward": (Case(lambda x, c: aten.softplus_backward(x, x, 1, c), 19.0),),
    "aten::softshrink": (Case(torch.nn.functional.softshrink, 0.7, (-1.0, NAN, TOO_LARGE)),),
    "aten::softshrink_backward": (Case(lambda x, c: aten.softshrink_backward(x, x, c), 0.7),),
    "aten::sub": (Case(lambda x, c: torch.sub(x, x, alpha=c), 2.0),),
    "aten::threshold": (Case(lambda x, c: torch.nn.functional.threshold(x, 1.0, c), 2.0),),
    "aten::threshold_backward": (Case(lambda x, c: aten.threshold_backward(x, x, c), 1.0),),
    "aten::uniform": (
        Case(lambda x, c: x.uniform_(0.0, c), 1.0, (-1.0, NAN, TOO_LARGE)),
        Case(lambda x, c: x.uniform_(-3e38, c), 1.0, (3e38,)),
    ),
}


def _said(case: Case, device: str, number: float) -> Exception | None:
    x = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).to(device, case.dtype)
    try:
        case.call(x, number)
    except Exception as error:
        return error
    return None


def test_each_rule_has_a_case():
    assert CASES.keys() == NUMBERS.keys()


@pytest.mark.parametrize("op", CASES)
def test_a_number_is_refused_after_one_that_was_taken(op):
    for case in CASES[op]:
        for number in case.refused:
            assert _said(case, "tpu", case.taken) is None
            expected, actual = _said(case, "cpu", number), _said(case, "tpu", number)
            assert expected is not None, (case, number)
            assert type(actual) is type(expected), (case, number, expected, actual)
            assert str(actual).startswith(str(expected).splitlines()[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, c: torch.remainder(x, c),
        lambda x, c: x // c,
        lambda x, c: torch.native_dropout(x, c - 1.0, False)[0],
        lambda x, c: torch.addmm(x.half(), x.half(), x.half(), alpha=c * 1e5),
        lambda x, c: torch.pow(x, c - 3),
    ],
)
def test_a_number_that_the_cpu_takes_is_taken_against_the_rule(call):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for number in (2, 0, 1):
        expected = call(x, number)
        torch.testing.assert_close(call(x.to("tpu"), number).cpu(), expected, equal_nan=True)


def test_bounds_that_a_dtype_does_not_hold_exactly_warn_at_the_call():
    x = torch.ones(2, device="tpu")
    x.random_(5)
    with pytest.warns(UserWarning, match="out of bounds") as said:
        x.random_(2**24 + 5)
    assert said[0].filename == __file__


def test_a_number_for_a_tensor_that_the_host_does_not_hold_is_refused(monkeypatch):
    monkeypatch.setattr(cpu_errors, "_LARGEST", 4)
    x = torch.ones(5, 5, device="tpu")
    x.bernoulli_(0.5)
    with pytest.raises(RuntimeError, match="expects p to be in"):
        x.bernoulli_(2.0)
