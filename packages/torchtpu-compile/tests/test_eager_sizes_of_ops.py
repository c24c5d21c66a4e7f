# SPDX-License-Identifier: Apache-2.0
"""Fused Eager at padded sizes: ops whose sizes vary share programs, values are the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile import eager_sizes
from torchtpu_core.runtime import varying

#: Two sizes have programs of their own; all that follow lie in one bucket.
SIZES = (3, 9, 5, 12, 7, 14, 11, 6, 13, 10)

pytestmark = pytest.mark.usefixtures("compiles")
Case = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


def _cached(x: Tensor, cache: Tensor) -> Tensor:
    return torch.cat([cache, x], 1)


def _slope(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function's value and its gradient in the first argument."""

    def both(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        value = function(leaf, *rest)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    return both


def _marked(n: int, of: int) -> Tensor:
    """A mask with `n` true elements."""
    mask = torch.zeros(of, dtype=torch.bool)
    mask[torch.randperm(of)[:n]] = True
    return mask


def _written(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = values
    x[mask] += values
    return x


#: Of a recurrent layer with 4 features and 3 units, and its first state.
WEIGHTS = [torch.full(size, 0.1) for size in ((9, 4), (9, 3), (9,), (9,), (1, 2, 3))]


def _recurrent(x: Tensor, *operands: Tensor) -> Tensor:
    *weights, state = operands
    output, last = torch.gru(x, state, weights, True, 1, 0.0, False, False, False)
    return output + last


def _gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gradient(x: Tensor, *others: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(x, *others).square().sum(), x)
        return found

    return gradient


PLAIN: list[Case] = [
    (torch.tanh, lambda n: (torch.randn(n, 4),)),
    (lambda x: x.sum(0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.amax(0), lambda n: (-torch.rand(n, 4) - 1,)),
    (lambda x: x.softmax(0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.mean(), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.max(0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.topk(2, 0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.sort(0), lambda n: (torch.randint(-9, 9, (n, 4)).cumsum(0),)),
    (lambda x: x.cumsum(0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.t() @ x, lambda n: (torch.randn(n, 4),)),
    (lambda x, y: x @ y.t(), lambda n: (torch.randn(n, 4), torch.randn(n + 3, 4))),
    (lambda x: x.half().sum(0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.bfloat16(), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.double().cos(), lambda n: (torch.randn(n, 4),)),
    (lambda x: x > 0, lambda n: (torch.randn(n, 4),)),
    (lambda x: x * 1j, lambda n: (torch.randn(n, 4),)),
    (lambda x, i: x[i], lambda n: (torch.randn(n, 4), torch.randint(0, n, (n,)))),
    (lambda x, i: F.embedding(i, x), lambda n: (torch.randn(8, 4), torch.randint(0, 8, (n,)))),
    (_cached, lambda n: (torch.randn(2, 1, 4), torch.randn(2, n, 4))),
    (lambda x, y: torch.where(x > 0, x, y), lambda n: (torch.randn(n, 4), torch.randn(4))),
    (F.layer_norm, lambda n: (torch.randn(n, 4), (4,))),
    (lambda x, w: F.conv2d(x, w), lambda n: (torch.randn(n, 2, 6, 6), torch.ones(3, 2, 3, 3))),
    (lambda x: torch.arange(x.shape[0], device=x.device), lambda n: (torch.randn(n),)),
    (lambda x: torch.ones(x.shape, device=x.device), lambda n: (torch.randn(n, n + 1),)),
    (lambda x: x.tril(), lambda n: (torch.randn(n, n),)),
    (torch.linalg.solve, lambda n: (torch.randn(n, n) + 9 * torch.eye(n), torch.randn(n))),
    (torch.linalg.solve, lambda n: (torch.rand(2, n, n) + 9 * torch.eye(n), torch.rand(2, n))),
]

TAKEN_APART: list[Case] = [
    (_slope(F.mse_loss), lambda n: (torch.randn(n, 4), torch.randn(n, 4))),
    (_slope(F.smooth_l1_loss), lambda n: (torch.randn(n, 4), torch.randn(n, 4))),
    (
        _slope(lambda x, y: F.huber_loss(x, y, delta=0.5)),
        lambda n: (torch.randn(n, 4), torch.randn(n, 4)),
    ),
    (_slope(F.binary_cross_entropy), lambda n: (torch.rand(n, 4), torch.rand(n, 4))),
    (
        _slope(F.binary_cross_entropy_with_logits),
        lambda n: (torch.randn(n, 4), torch.rand(n, 4)),
    ),
    (_slope(F.logsigmoid), lambda n: (torch.randn(n, 4),)),
    (_slope(F.glu), lambda n: (torch.randn(n, 4),)),
    (_slope(lambda x: F.group_norm(x, 2)), lambda n: (torch.randn(n, 4, 3),)),
    (_slope(lambda x: F.layer_norm(x, (x.shape[1],))), lambda n: (torch.randn(2, n),)),
    (
        _slope(lambda x, mean, var: F.batch_norm(x, mean, var, training=True)),
        lambda n: (torch.randn(n, 4), torch.zeros(4), torch.ones(4)),
    ),
    (_slope(lambda x: x.norm(dim=0)), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.roll(1, 0), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.roll(1), lambda n: (torch.randn(n, 4),)),
    (lambda x: F.pad(x, (1, 0), value=0.5), lambda n: (torch.randn(3, n),)),
    (lambda x: F.pad(x, (0, 1), value=len(x)), lambda n: (torch.arange(n),)),
    (lambda x: F.pad(x, (1, 2), mode="reflect"), lambda n: (torch.randn(2, 3, n),)),
    (lambda x: F.interpolate(x, scale_factor=2), lambda n: (torch.randn(n, 2, 3, 3),)),
]

MASKS: list[Case] = [
    (_slope(lambda x, mask: x[mask]), lambda n: (torch.randn(20, 3), _marked(n, 20))),
    (_slope(lambda x, mask: x[:, mask]), lambda n: (torch.randn(2, 20), _marked(n, 20))),
    (_written, lambda n: (torch.randn(4, 5, 2), _marked(n, 20).view(4, 5), torch.randn(n, 2))),
    (_written, lambda n: (torch.randn(n, 6), _marked(3, n), torch.randn(3, 6))),
    (_written, lambda n: (torch.randn(n, n + 1), _marked(3, n), torch.randn(3, 1))),
]

VIEWS_AND_WRITES: list[Case] = [
    (lambda x: x.add_(1), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.fill_(True), lambda n: (torch.randn(n, 4) > 0,)),
    (lambda x: x.half().add_(x), lambda n: (torch.randn(n, 4),)),
    (lambda x: x[1:].mul_(2), lambda n: (torch.randn(n, 4),)),
    (lambda x: x[:, 1].fill_(3), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.t()[1].sub_(1), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.flip(0).t()[::2].exp_(), lambda n: (torch.randn(n, 4),)),
    (lambda x: torch.neg(x, out=torch.empty_like(x)), lambda n: (torch.randn(n, 4),)),
    (lambda x, y: y[: len(x)].copy_(x), lambda n: (torch.randn(n, 4), torch.zeros(20, 4))),
    (lambda x, y: x + y[: len(x)], lambda n: (torch.randn(n, 4), torch.randn(20, 4))),
    (lambda x: x[-1] * 2, lambda n: (torch.randn(n, 4),)),
    (lambda x: x.transpose(0, 1)[:, ::2].sum(), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.unfold(0, 3, 2).sum(-1), lambda n: (torch.randn(n, 4),)),
    (lambda x: x.expand(3, *x.shape) + 1, lambda n: (torch.randn(n, 4),)),
    (lambda x: x.view(torch.int32) // 2, lambda n: (torch.randn(n, 4),)),
    (lambda x, m: x.masked_fill_(m, 0), lambda n: (torch.randn(n, 4), torch.rand(n, 1) > 0.5)),
]

PARTS_AND_POSITIONS: list[Case] = [
    (_gradient(lambda x: x[: 2 + len(x) // 2]), lambda n: (torch.randn(n, 4),)),
    (_gradient(lambda x: x[1 + len(x) // 5 :]), lambda n: (torch.randn(n, 4),)),
    (_gradient(lambda x: x[:, ::2]), lambda n: (torch.randn(n, n),)),
    (_gradient(lambda x: x[-2:]), lambda n: (torch.randn(n, 4),)),
    (_gradient(lambda x: x[len(x) // 2 + 1]), lambda n: (torch.randn(n, 4),)),
    (_gradient(lambda x, i: x[i]), lambda n: (torch.randn(n, 4), torch.randint(0, n, (n,)))),
    (torch.nonzero, lambda n: (torch.ones(n, 4) - torch.eye(n, 4),)),
    (_gradient(_recurrent), lambda n: (torch.randn(n, 2, 4), *WEIGHTS)),
]

FILLS: list[Case] = [
    (lambda x: torch.linspace(-1, 2, len(x), device=x.device), lambda n: (torch.randn(n),)),
    (lambda x: torch.logspace(-1, 2, len(x), device=x.device), lambda n: (torch.randn(n),)),
    (lambda x: torch.logspace(0, 3, len(x), 2.0, device=x.device), lambda n: (torch.randn(n),)),
    (lambda x: torch.tril_indices(*x.shape, 1, device=x.device), lambda n: (torch.ones(n, n),)),
    (lambda x: torch.triu_indices(*x.shape, device=x.device), lambda n: (torch.ones(n, n + 2),)),
    (lambda x: torch.eye(len(x), device=x.device), lambda n: (torch.randn(n),)),
    (lambda x: torch.eye(*x.shape, device=x.device), lambda n: (torch.randn(n, n + 2),)),
    (lambda x: torch.randperm(len(x), device=x.device).sort()[0], lambda n: (torch.randn(n),)),
]

#: Of a kind of ops: cases, programs of an op at most, and how many ops a case has at most.
KINDS = {
    "plain": (PLAIN, 1, 2),
    "taken apart": (TAKEN_APART, 1, 7),
    "fills": (FILLS, 1, 2),
    "masks": (MASKS, 1, 7),
    "views and writes": (VIEWS_AND_WRITES, 1, 4),
    "parts and positions": (PARTS_AND_POSITIONS, 2, 8),
}


@pytest.mark.parametrize(
    ("function", "make", "most"),
    [
        pytest.param(function, make, most * op_count, id=f"{kind} {number}")
        for kind, (cases, most, op_count) in KINDS.items()
        for number, (function, make) in enumerate(cases)
    ],
)
def test_ops_of_varying_sizes_have_few_programs(
    compiles: Callable[[], int],
    function: Callable[..., Any],
    make: Callable[[int], tuple[Any, ...]],
    most: int,
) -> None:
    refused, before = dict(eager_sizes.reasons), 0
    for turn, size in enumerate(SIZES):
        operands = make(size)
        on_device = [x.to("tpu") if isinstance(x, Tensor) else x for x in operands]
        before = before if turn != 2 else compiles()
        torch.tpu.synchronize()
        torch.manual_seed(size)
        actual = function(*on_device)
        torch.tpu.synchronize()
        torch.manual_seed(size)
        expected = function(*operands)
        for a, e in zip(
            torch.utils._pytree.tree_leaves((actual, on_device)),
            torch.utils._pytree.tree_leaves((expected, operands)),
            strict=True,
        ):
            if isinstance(e, Tensor):
                torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
    assert dict(eager_sizes.reasons) == refused, "ran at true sizes"
    assert compiles() - before <= most


def test_values_that_do_not_fit_a_mask_are_refused() -> None:
    for n in SIZES:
        mask, x = _marked(n, 20).to("tpu"), torch.zeros(20, 2, device="tpu")
        with pytest.raises(RuntimeError, match=r"shape mismatch.*test_eager_sizes_of_ops\.py"):
            x[mask] = torch.ones(n + 1, 2, device="tpu")
            torch.tpu.synchronize()


def test_an_op_that_writes_one_storage_twice_has_a_program_per_size() -> None:
    for size in SIZES:
        x, expected = torch.zeros(size, 4, device="tpu"), torch.zeros(size, 4)
        for t in (x, expected):
            torch._foreach_add_([t[:, 0], t[:, 2]], 1.0)
        assert torch.equal(x.cpu(), expected)


def test_unwritten_storage_is_zero_where_a_view_of_it_is_written() -> None:
    for size in SIZES:
        x = torch.empty(size, 4, device="tpu")
        x[:, 1].view(torch.int32).fill_(7)
        torch.tpu.synchronize()
        assert x[:, 0].count_nonzero().item() == 0
        assert x.view(torch.int32)[:, 1].eq(7).all().item()


DRAWS: dict[str, Callable[[int], Tensor]] = {
    "randperm": lambda n: torch.randperm(n, device="tpu"),
    "randn": lambda n: torch.randn(n, 3, device="tpu"),
    "randint": lambda n: torch.randint(2, 9, (n, 3), device="tpu"),
    "random_": lambda n: torch.zeros(n, 3, device="tpu").random_(),
    "random_ to": lambda n: torch.zeros(n, 3, device="tpu").random_(7),
    "normal_": lambda n: torch.zeros(n, 3, device="tpu").normal_(1, 2),
    "bernoulli_": lambda n: torch.zeros(n, 3, device="tpu").bernoulli_(0.4),
    "geometric_": lambda n: torch.zeros(n, 3, device="tpu").geometric_(0.4),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_varying_sizes_share_a_program_and_are_those_of_their_size(name: str) -> None:
    def drawn(n: int) -> Tensor:
        torch.manual_seed(n)
        return DRAWS[name](n).cpu()

    before = [drawn(n) for n in SIZES[:-2]]
    compiles = torch.tpu.counters()["compiles"]
    at_padded_size = [drawn(n) for n in SIZES[-2:]]
    assert torch.tpu.counters()["compiles"] == compiles
    varying.forget()
    for n, draw in zip(SIZES[-2:], at_padded_size, strict=True):
        assert drawn(n).equal(draw)
    assert len(before[-1]) == SIZES[-3]


RANKS: dict[str, Callable[[Tensor, int], Any]] = {
    "topk": lambda x, k: x.topk(k),
    "smallest": lambda x, k: x.topk(k, 1, largest=False),
    "kthvalue": lambda x, k: x.kthvalue(k),
}


@pytest.mark.parametrize("name", RANKS)
def test_varying_ranks_of_a_tensor_of_one_size_share_a_program(name: str) -> None:
    x = torch.randn(3, 15)  # fewer than the padded number of ranks
    on_device, function = x.to("tpu"), RANKS[name]
    before = torch.tpu.counters()["compiles"]
    for k in SIZES:
        for found, expected in zip(function(on_device, k), function(x, k), strict=True):
            torch.testing.assert_close(found.cpu(), expected)
    assert torch.tpu.counters()["compiles"] - before <= 4


@pytest.mark.parametrize("written", [False, True])
def test_bytes_seen_as_truths_equal_truths_at_padded_sizes(written: bool) -> None:
    for size in SIZES:
        truths = torch.arange(size) % 3 == 0
        octets = (truths * 132).to(torch.uint8).to("tpu")
        seen = octets.view(torch.bool)
        if written:
            seen = torch.zeros(size, dtype=torch.bool, device="tpu")
            torch.bitwise_or(octets, octets, out=seen.view(torch.uint8))
        torch.tpu.synchronize()
        equal = seen == truths.to("tpu")
        torch.tpu.synchronize()
        assert equal.cpu().all(), size
