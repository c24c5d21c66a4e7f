# SPDX-License-Identifier: Apache-2.0
"""Shapes of calls of new sizes come from PyTorch's kernels in C++ where it has them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

_SIZES = itertools.count(6)  # more rows than the columns whose numbers index them

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "cat": lambda x: torch.cat((x, x[:2]), 0),
    "strided": lambda x: x.t() * 2 + x.t().sigmoid(),
    "promoted": lambda x: (x + x.to(torch.int32)) / 3,
    "in place": lambda x: x.clone().mul_(x).add_(x),
    "softmax": lambda x: F.log_softmax(F.gelu(x), -1),
    "product": lambda x: torch.addmm(x[0, :1], x, x.t()),
    "reduced": lambda x: (x.mean(0), x.amax(1, keepdim=True), x.cumsum(0), x.argmax(1)),
    "indexed": lambda x: (x[x[:, 0].argsort()], x.gather(0, x.argmax(1, keepdim=True))),
    "channels last": lambda x: F.avg_pool2d(
        x.reshape(1, 1, *x.shape).to(memory_format=torch.channels_last), 2
    ),
    "nothing added": lambda x: x.index_add(0, x[:0, 0].long(), x[:0]),  # C++'s refuses it
    "loss": lambda x: F.nll_loss(x, x.argmax(1).clamp(max=x.shape[1] - 1)),
    "numbers and masks": lambda x: (
        *(1 - x, 2 - x.int(), x.t().relu(), x.int().abs(), x.t()[1:].abs(), x.int() + x.half()),
        *(x * (x > 0), (x > 0) + (x < 1), (x > 0) & (x < 1), ~(x > 0), x.int() | x.int(), x.mean()),
    ),
    "chosen": lambda x: (
        *(torch.where(x > 0, x, 0.5), torch.where(x[:, :1] > 0, 1, x.int())),
        *(torch.where(x.t() > 0, x.t(), 0), torch.where(x[0, 0] > 0, x.t().half(), x.t())),
    ),
    "truths": lambda x: (
        *((x > 0).any(), (x > 0).all(1), x.int().any(0, keepdim=True), x.half().all()),
    ),
    "stacked": lambda x: (
        *(torch.stack((x, x), 1), torch.stack((x > 0, x > 1), -1), torch.stack((x.t(), x.t()))),
        *(torch.stack((x[0, 0], x[1, 1])), torch.cat((x.t(), x.t().half()), 1)),
    ),
    "masked": lambda x: (
        *(x.masked_fill(x > 0, -1), x.masked_fill(x[:, :1] > 0, 2.5), x.t().tril(1)),
        *(x.t().masked_fill(x.t() > 0, 0), (x > 0).triu(), x.half().masked_fill(x > 0, 1)),
    ),
    "powers": lambda x: (x**2, x.t().abs() ** 0.5, x.half() ** 3, (x > 0) ** True, x.int() ** 2),
    "normalised": lambda x: (
        F.layer_norm(x, x.shape[1:]),
        F.layer_norm(x.t(), x.shape[:1], x[:, 0]),
    ),
    "of a batch": lambda x: (
        F.batch_norm(x, x[0], x[1].abs(), x[2], x[3]),
        F.batch_norm(x.reshape(1, *x.shape), x[:, 0], x[:, 1].abs()),
        F.batch_norm(x, None, None, training=True),
        F.batch_norm(x.t(), x[:, 0], x[:, 1].abs()),
    ),
    "signs of trouble": lambda x: (
        *(
            torch.isclose(x, x),
            torch.isclose(x.int(), x.int()),
            x.isnan(),
            x.isinf(),
            x.t().isnan(),
            x.half().isinf(),
            x.int().isnan(),
            x.int().isinf(),
        ),
        *(torch.logical_and(x > 0, x < 1), torch.logical_or(x, x.int()), torch.logical_not(x.t())),
        *(torch.logical_xor(x > 0, x[0]), x.isfinite()),
    ),
    "spread": lambda x: (
        *(x.std(), x.std(0), x.var(1, keepdim=True), x.half().std((0, 1)), x.t().var(0)),
        *(x.var(0, correction=0), x.logsumexp(0), x.logsumexp((0, 1), keepdim=True)),
    ),
    "rests": lambda x: (
        *(x % 2, x.int() % 3, x.int() % 2.5, x.t() % 2, x.half() % 3, x.half() % 2.5),
        *(x // 2, x.int() // 3, x.int() // (x.int().abs() + 1), x.t() // 0.5, x.int() // 2.5),
    ),
    "classes": lambda x: (
        F.nll_loss(x, x.argmax(1), x[0].abs() + 1),
        F.nll_loss(x, x.argmax(1), reduction="none"),
        F.cross_entropy(x, x.argmax(1), ignore_index=1),
    ),
    "rolled": lambda x: (
        *(x.roll(1), x.roll((1, 2), (0, -1)), x.int().roll(1, 0), (x > 0).roll(2, 1)),
        *(x.t().roll(1, 0), x.roll((1, 2), (0, 0)), x[:0].roll(1, 0), x[0, 0].roll(1)),
    ),
    "counted": lambda x: (
        *((x > 0).cumsum(0), x.int().cumsum(1), x.long().cumprod(0), x.t().cumprod(0)),
        *(x.half().cumsum(0), x.cumsum(0, dtype=torch.float64), (x > 0).t().cumsum(1)),
    ),
    "groups": lambda x: (
        F.group_norm(x.view(1, -1, 5), 2 if len(x) % 2 == 0 else 1),
        F.group_norm(x.view(1, -1, 5), len(x), x[:, 0], x[:, 1]),
        F.group_norm(x, 5),
        F.group_norm(x.t(), 1, x[:, 0]),
    ),
    "dropped": lambda x: (
        *(F.dropout(x.clone(), 0.5) * 0, F.dropout(x.t(), 0.5) * 0, F.dropout(x, 0.0)),
        *(F.dropout(x, 1.0), F.dropout(x.half(), 0.5) * 0),
    ),
    "truth losses": lambda x: (
        F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
        F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), x.abs(), reduction="none"),
        F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), x[0].abs(), reduction="sum"),
        F.binary_cross_entropy(x.t().sigmoid(), x.t().sigmoid(), reduction="none"),
        F.binary_cross_entropy_with_logits(x, x.sigmoid(), x.abs(), pos_weight=x[0].abs()),
        F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none"),
        F.binary_cross_entropy_with_logits(x.t(), x.t().sigmoid(), reduction="none"),
    ),
    "gradients": lambda x: _gradients(x),
}


def _gradients(x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    weight = x[:, 1].detach().requires_grad_()
    y = F.group_norm(x.view(1, -1, 5), 1, weight, weight * 2).view_as(x)
    z = F.binary_cross_entropy(y.sigmoid(), x.detach().sigmoid())
    z = z + F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), reduction="none").sum()
    (dropped,) = torch.autograd.grad(F.dropout(x, 0.5).sum(), x)
    assert set(dropped.unique().tolist()) <= {0, 2}
    return [*torch.autograd.grad(z, (x, weight)), dropped * 0]


def _leaves(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in _leaves(v)]


@pytest.mark.parametrize("name", CALLS)
def test_call_of_a_new_size_has_the_form_of_cpus(name: str) -> None:
    CALLS[name](torch.randn(next(_SIZES), 5).to("tpu"))  # the first asks Python
    x = torch.randn(next(_SIZES), 5)
    for ours, theirs in zip(
        _leaves(CALLS[name](x.to("tpu"))), _leaves(CALLS[name](x)), strict=True
    ):
        assert (ours.shape, ours.stride(), ours.dtype) == (
            theirs.shape,
            theirs.stride(),
            theirs.dtype,
        )
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_complex_numbers_have_real_magnitudes() -> None:
    for size in (next(_SIZES), next(_SIZES)):
        assert torch.ones(size, dtype=torch.complex64, device="tpu").abs().dtype == torch.float32


def test_inference_does_not_import_dynamo(fresh_python: Callable[..., Any]) -> None:
    assert fresh_python(_INFERENCE).stdout.strip() == "False"


_INFERENCE = """
import sys, torch
x = torch.randn(2, 4, 8).to("tpu")
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("tpu").eval()
with torch.no_grad():
    y = layer(x).relu().mean() + (torch.arange(3, device="tpu") * 2 + 1).sum()
y.item()
mask = torch.stack([x > 0, x > 1]).any(0).tril()
(torch.cat([x, x.masked_fill(mask, 0.0) ** 2]).isfinite().all() & mask.all()).item()
x.gather(-1, x.argmax(-1, keepdim=True)).tolist()
norm = torch.nn.BatchNorm2d(2).to("tpu").eval()
z = norm(x.view(1, 2, 4, 8)).flatten(1)
loss = torch.nn.functional.cross_entropy(z, torch.tensor([3]).to("tpu"))
loss = loss + (z - z.mean(1)) / z.std(1) + z.isnan().logical_not() * z.logsumexp(1)
((loss % 2).isinf() | torch.logical_and(loss // 3 > 0, loss > 0)).tolist()
torch.isclose(z, z).all().item()
z = torch.nn.GroupNorm(2, 4).to("tpu")(x).roll(1, 0).sigmoid()
w = torch.nn.functional.binary_cross_entropy(z, z)
w = w + torch.nn.functional.binary_cross_entropy_with_logits(z, z)
(w + torch.nn.functional.dropout(z, 0.5).sum()).item()
torch.unique((z > 0).int()).tolist()
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(
    "name",
    [
        *("cat", "in place", "softmax", "product", "reduced", "numbers and masks", "chosen"),
        *("truths", "masked", "of a batch", "spread", "rests", "classes"),
    ],
)
def test_call_of_a_new_size_asks_no_python_of_pytorchs(name: str) -> None:
    CALLS[name](torch.randn(next(_SIZES), 5).to("tpu"))
    x = torch.randn(next(_SIZES), 5).to("tpu")
    asked = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and ("_refs" in (f := frame.f_code.co_filename) or "_meta_" in f):
            asked.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        CALLS[name](x)
    finally:
        sys.setprofile(before)
    assert not asked


MISTAKES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "sizes": (torch.add, (torch.ones(3, 4), torch.ones(4)), (torch.ones(3, 4), torch.ones(5))),
    "cat": (
        lambda x, y: torch.cat((x, y)),
        (torch.ones(3, 4), torch.ones(2, 4)),
        (torch.ones(3, 4), torch.ones(3, 5)),
    ),
    "product": (torch.mm, (torch.ones(3, 4), torch.ones(4, 3)), (torch.ones(3, 4),) * 2),
    "bias": (
        torch.addmm,
        (torch.ones(3), torch.ones(2, 4), torch.ones(4, 3)),
        (torch.ones(2), torch.ones(2, 4), torch.ones(4, 3)),
    ),
    "dtypes": (
        torch.bmm,
        (torch.ones(2, 3, 3),) * 2,
        (torch.ones(2, 3, 3), torch.ones(2, 3, 3).half()),
    ),
    "stack": (
        lambda x, y: torch.stack((x, y)),
        (torch.ones(3, 4), torch.ones(3, 4)),
        (torch.ones(3, 4), torch.ones(3, 5)),
    ),
    "masked": (
        lambda x, y: x.masked_fill(y > 0, 1.0),
        (torch.ones(3, 4), torch.ones(3, 4)),
        (torch.ones(3, 4), torch.ones(3, 5)),
    ),
    "rolled": (
        lambda x, y: torch.roll(x, (1,) * len(y), (0,)),
        (torch.ones(3, 4), torch.ones(1)),
        (torch.ones(3, 4), torch.ones(2)),
    ),
    "groups": (
        lambda x, y: F.group_norm(x, 2, y),
        (torch.ones(3, 4), torch.ones(4)),
        (torch.ones(3, 4), torch.ones(3)),
    ),
    "no kernel": (F.leaky_relu, (torch.ones(3),), (torch.ones(3, dtype=torch.int64),)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_after_a_call_that_was_right_raises_as_on_cpu(name: str) -> None:
    call, right, wrong = MISTAKES[name]
    call(*(t.to("tpu") for t in right))
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        call(*wrong)
    with pytest.raises(type(theirs.value)) as ours:
        call(*(t.to("tpu") for t in wrong))
    if name != "no kernel":
        assert str(theirs.value).splitlines()[0] in str(ours.value)


_BY_A_NUMBER = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.pow, F.hardshrink)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)


@pytest.mark.parametrize(
    "ranks", [(0, 1, 4, 7), pytest.param(range(8), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_what_one_operator_accepts_another_still_refuses(ranks) -> None:
    for call, dtype, dims in itertools.product(_BY_A_NUMBER, _DTYPES, ranks):
        if call is not F.hardshrink or dtype.is_floating_point:
            call(torch.ones((1,) * dims, dtype=dtype, device="tpu"), 0.5)
    for dtype, dims in itertools.product(_DTYPES[3:], range(8)):
        with pytest.raises(NotImplementedError, match="leaky_relu_cpu"):
            F.leaky_relu(torch.ones((1,) * dims, dtype=dtype, device="tpu"), 0.5)


@pytest.mark.parametrize("op", [torch.copysign, torch.floor_divide, torch.fmod, torch.atan2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_number_in_a_host_tensor_is_either_operand(op, dtype) -> None:
    number, values = torch.tensor(7, dtype=dtype), torch.tensor([1, -2, 3], dtype=dtype)
    for operands in ((number, values), (values, number)):
        found = op(*(x.to("tpu") if x.ndim else x for x in operands))
        expected = op(*operands)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected)
