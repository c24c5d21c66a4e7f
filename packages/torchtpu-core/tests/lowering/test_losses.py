# SPDX-License-Identifier: Apache-2.0
"""Losses, distances and CTC against CPU PyTorch."""

from __future__ import annotations

import jax
import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import ctc, distances, losses, margin_losses, mxu
from torchtpu_core.lowering.table import Kind
from torchtpu_core.testing.lowering import assert_close, check, lower

TABLE = (*losses.TABLE, *margin_losses.TABLE, *distances.TABLE, *ctc.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
REDUCTIONS = [0, 1, 2]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


def unit(*shape: int) -> Tensor:
    return torch.rand(shape, generator=_GENERATOR)


def labels(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=_GENERATOR)


def grad_for(reduction: int, *shape: int) -> Tensor:
    return rand(*shape) if reduction == 0 else rand()


DISTANCE = {
    "aten::mse_loss": (),
    "aten::smooth_l1_loss": (0.7,),
    "aten::huber_loss": (0.7,),
    "aten::soft_margin_loss": (),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("overload", DISTANCE)
def test_distance_loss_equals_cpu(overload: str, reduction: int) -> None:
    x, target = rand(3, 4), rand(3, 4)
    target[0] = x[0]
    extra = DISTANCE[overload]
    check(overload, x, target, reduction, *extra, table=TABLE)
    grad = grad_for(reduction, 3, 4)
    check(f"{overload}_backward", grad, x, target, reduction, *extra, table=TABLE)


@pytest.mark.parametrize("overload", DISTANCE)
def test_distance_loss_with_defaults_of_nothing_equals_cpu(overload: str) -> None:
    check(overload, rand(0, 4), rand(0, 4), table=TABLE)


def test_smooth_l1_with_beta_zero_is_l1() -> None:
    check("aten::smooth_l1_loss", rand(3, 4), rand(3, 4), 1, 0.0, table=TABLE)


def test_mse_loss_bfloat16_rounds_once() -> None:
    x, target = rand(3, 4, dtype=torch.bfloat16), rand(3, 4, dtype=torch.bfloat16)
    row = next(r for r in TABLE if r.overload == "aten::mse_loss")
    expected = torch.nn.functional.mse_loss(x.double(), target.double()).bfloat16()
    assert_close(lower(row, (x, target), {}), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy_equals_cpu(reduction: int, weighted: bool) -> None:
    x, target = unit(3, 4), unit(3, 4)
    x[0, 0], x[0, 1] = 0, 1
    weight = unit(3, 4) if weighted else None
    check("aten::binary_cross_entropy", x, target, weight, reduction, table=TABLE)
    arguments = (grad_for(reduction, 3, 4), x, target, weight, reduction)
    check("aten::binary_cross_entropy_backward", *arguments, table=TABLE)


def test_binary_cross_entropy_outside_the_unit_interval_raises() -> None:
    row = next(r for r in TABLE if r.overload == "aten::binary_cross_entropy")
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        lower(row, (torch.tensor([0.5, 1.5]), torch.zeros(2)), {})


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_with_logits_equals_cpu(reduction: int) -> None:
    x = 50 * rand(3, 4)
    arguments = (x, unit(3, 4), unit(4), unit(4) + 1, reduction)
    check("aten::binary_cross_entropy_with_logits", *arguments, table=TABLE)
    check("aten::binary_cross_entropy_with_logits", x, unit(3, 4), table=TABLE)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 4, 3, 2)])
def test_nll_loss_equals_cpu(shape: tuple[int, ...], weighted: bool, reduction: int) -> None:
    name = "aten::nll_loss2d" if len(shape) == 4 else "aten::nll_loss"
    x, weight = rand(*shape), unit(4) if weighted else None
    outer = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = labels(4, *outer)
    if outer:
        target.view(-1)[0] = 1
    common = (x, target, weight, reduction, 1)
    check(f"{name}_forward", *common, table=TABLE)
    total = torch.ones(()) if weight is None else torch.tensor(2.5)
    check(f"{name}_backward", grad_for(reduction, *outer), *common, total, table=TABLE)


def test_nll_loss_of_nothing_equals_cpu() -> None:
    for reduction in REDUCTIONS:
        arguments = (rand(0, 4), labels(4, 0), None, reduction, -100)
        check("aten::nll_loss_forward", *arguments, table=TABLE)


@pytest.mark.parametrize("target", [4, -1])
def test_nll_loss_of_a_target_outside_raises(target: int) -> None:
    row = next(r for r in TABLE if r.overload == "aten::nll_loss_forward")
    with pytest.raises(IndexError, match="out of bounds"):
        lower(row, (rand(1, 4), torch.tensor([target]), None, 1, -100), {})


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_equals_cpu(p: int, reduction: int) -> None:
    x, target, weight = rand(5, 4), labels(4, 5), unit(4)
    check("aten::multi_margin_loss", x, target, p, 0.5, weight, reduction, table=TABLE)
    arguments = (grad_for(reduction, 5), x, target, p, 0.5, weight, reduction)
    check("aten::multi_margin_loss_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_loss_equals_cpu(reduction: int) -> None:
    x = rand(3, 4)
    target = torch.tensor([[1, 3, -1, 0], [-1, 0, 0, 0], [0, 1, 2, 3]])
    check("aten::multilabel_margin_loss_forward", x, target, reduction, table=TABLE)
    is_target = torch.ops.aten.multilabel_margin_loss_forward(x, target, reduction)[1]
    arguments = (grad_for(reduction, 3), x, target, reduction, is_target)
    check("aten::multilabel_margin_loss_backward", *arguments, table=TABLE)


P = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]


@pytest.mark.parametrize("p", P)
def test_cdist_equals_cpu(p: float) -> None:
    a, b = rand(2, 3, 4), rand(2, 5, 4)
    b[:, 0] = a[:, 0]
    check("aten::_cdist_forward", a, b, p, None, table=TABLE)
    out = torch.ops.aten._cdist_forward(a, b, p, None)
    check("aten::_cdist_backward", rand(2, 3, 5), a, b, p, out, table=TABLE)


def test_cdist_of_many_rows_equals_cpu() -> None:
    check("aten::_cdist_forward", rand(30, 4), 3 + rand(26, 4), 2.0, None, table=TABLE)


@pytest.mark.parametrize("p", P)
def test_pdist_equals_cpu(p: float) -> None:
    x = rand(5, 4)
    check("aten::_pdist_forward", x, p, table=TABLE)
    out = torch.ops.aten._pdist_forward(x, p)
    check("aten::_pdist_backward", rand(10), x, p, out, table=TABLE)


STEPS, LENGTHS = torch.tensor([7, 5, 6, 7]), torch.tensor([3, 0, 2, 1])


def ctc_case() -> tuple[Tensor, Tensor]:
    """Log-probabilities `(7, 4, 5)` and targets `(4, 3)` with a repeated label."""
    targets = 1 + labels(4, 4, 3)
    targets[0, 1] = targets[0, 0]
    return torch.log_softmax(rand(7, 4, 5), -1), targets


def test_ctc_loss_equals_cpu() -> None:
    log_probs, targets = ctc_case()
    row = next(r for r in TABLE if r.overload == "aten::_ctc_loss.Tensor")
    arguments = (log_probs, targets, STEPS, LENGTHS)
    expected = torch.ops.aten._ctc_loss.Tensor(*arguments)[0]
    assert_close(lower(row, arguments, {})[0], expected)


def test_ctc_loss_of_an_impossible_target_is_infinite() -> None:
    log_probs, targets = ctc_case()
    row = next(r for r in TABLE if r.overload == "aten::_ctc_loss.Tensor")
    loss = lower(row, (log_probs, targets, torch.tensor([2, 0, 0, 1]), LENGTHS), {})[0]
    assert loss[0] == float("inf")
    assert loss[1] == 0
    assert loss[2] == float("inf")


@pytest.mark.parametrize(
    ("targets", "steps", "lengths"),
    [
        (torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([3])),
        (torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([1])),
        (torch.tensor([[1, 2]]), torch.tensor([-1]), torch.tensor([1])),
        (torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([-1])),
        (torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([3])),
        (torch.tensor([1, 2]), [3], [3]),
        (torch.tensor([1, 2, 3]), [3], [2]),
    ],
)
def test_ctc_loss_refuses_lengths_that_exceed_what_there_is(targets, steps, lengths) -> None:
    for device in ("cpu", "tpu"):
        log_probs = torch.zeros(3, 1, 4, device=device).log_softmax(2)
        moved = (x.to(device) if isinstance(x, Tensor) else x for x in (targets, steps, lengths))
        with pytest.raises(RuntimeError, match="Expected "):
            torch.nn.functional.ctc_loss(log_probs, *moved).cpu()


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss_backward_equals_autograd(zero_infinity: bool) -> None:
    log_probs, targets = ctc_case()
    steps = torch.tensor([7, 5, 1, 7]) if zero_infinity else STEPS
    leaf, grad = log_probs.clone().requires_grad_(), rand(4)
    loss = torch.nn.functional.ctc_loss(
        leaf, targets, steps, LENGTHS, reduction="none", zero_infinity=zero_infinity
    )
    (expected,) = torch.autograd.grad(loss, leaf, grad)
    forward, backward = (
        next(r for r in TABLE if r.overload == f"aten::_ctc_loss{name}.Tensor")
        for name in ("", "_backward")
    )
    common = (log_probs, targets, steps, LENGTHS)
    saved = lower(forward, common, {})
    actual = lower(backward, (grad, *common, *saved, 0, zero_infinity), {})
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_ctc_loss_of_lists_hands_padded_targets_on() -> None:
    log_probs, targets = ctc_case()
    row = next(r for r in TABLE if r.overload == "aten::_ctc_loss")
    assert row.kind is Kind.COMPOSITE
    assert row.function is not None
    lists = STEPS.tolist(), LENGTHS.tolist()
    joined = torch.cat([t[:n] for t, n in zip(targets, LENGTHS, strict=True)])
    expected = torch.ops.aten._ctc_loss.default(log_probs, targets, *lists)[0]
    for form in (targets, joined):
        assert_close(row.function(log_probs, form, *lists)[0], expected)


@pytest.mark.parametrize("shape", [(6, 5), (5,)])
def test_a_tpu_picks_the_same_elements_without_a_gather(shape: tuple[int, ...]) -> None:
    x = rand(*shape)
    target = labels(5, *shape[:-1])
    row = next(r for r in losses.TABLE if r.overload == "aten::nll_loss_forward")
    arguments = [x, target, None, 1, -100]
    with mxu.for_platform("tpu"):
        text = str(
            jax.make_jaxpr(lambda x, t: losses.nll_loss_forward(x, t, None, 1, -100))(
                x.numpy(), target.numpy()
            )
        )
        actual = lower(row, arguments, {})
    assert "gather" not in text
    assert_close(actual, torch.ops.aten.nll_loss_forward(*arguments))
