# SPDX-License-Identifier: Apache-2.0
"""Fused Eager at padded sizes: ops whose sizes vary share programs, values are the CPU's."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchtpu_compile import eager_sizes
from torchtpu_compile.padded_call import PaddedCall
from torchtpu_core.runtime import varying

#: Two sizes have programs of their own; all that follow lie in one bucket.
SIZES = (3, 9, 5, 12, 7, 14, 11, 6, 13, 10)


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    torch.tpu.init()
    varying.forget()
    with torch.tpu.set_eager_mode("fused"):
        yield


def _compiles() -> int:
    torch.tpu.synchronize()
    torch.tpu.wait_for_compiles()
    count: int = torch.tpu.counters()["compiles"]
    return count


def _check(
    function: Callable[..., Any],
    make: Callable[[int], tuple[Any, ...]],
    most: int,
    *,
    op_count: int,
) -> None:
    """Values of the CPU at all sizes, and no more than `most` programs per op after two sizes."""
    refused, before = dict(eager_sizes.reasons), 0
    for turn, size in enumerate(SIZES):
        operands = make(size)
        on_device = [x.to("tpu") if isinstance(x, Tensor) else x for x in operands]
        before = before if turn != 2 else _compiles()
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
    assert _compiles() - before <= most * op_count


def _cached(x: Tensor, cache: Tensor) -> Tensor:
    return torch.cat([cache, x], 1)


@pytest.mark.parametrize(
    ("function", "make"),
    [
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
    ],
)
def test_an_op_of_varying_sizes_has_few_programs(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]
) -> None:
    _check(function, make, most=1, op_count=2)


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


@pytest.mark.parametrize(
    ("function", "make"),
    [
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
        (lambda x: F.pad(x, (1, 2), mode="reflect"), lambda n: (torch.randn(2, 3, n),)),
        (lambda x: F.interpolate(x, scale_factor=2), lambda n: (torch.randn(n, 2, 3, 3),)),
    ],
)
def test_an_op_without_a_rule_is_taken_apart(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]
) -> None:
    _check(function, make, most=1, op_count=7)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (_slope(lambda x, mask: x[mask]), lambda n: (torch.randn(20, 3), _marked(n, 20))),
        (_slope(lambda x, mask: x[:, mask]), lambda n: (torch.randn(2, 20), _marked(n, 20))),
        (_written, lambda n: (torch.randn(4, 5, 2), _marked(n, 20).view(4, 5), torch.randn(n, 2))),
        (_written, lambda n: (torch.randn(n, 6), _marked(3, n), torch.randn(3, 6))),
        (_written, lambda n: (torch.randn(n, n + 1), _marked(3, n), torch.randn(3, 1))),
    ],
)
def test_masks_of_varying_counts(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]
) -> None:
    _check(function, make, most=1, op_count=7)


def test_values_that_do_not_fit_a_mask_are_refused() -> None:
    for n in SIZES:
        mask, x = _marked(n, 20).to("tpu"), torch.zeros(20, 2, device="tpu")
        with pytest.raises(RuntimeError, match=r"shape mismatch.*test_eager_sizes\.py"):
            x[mask] = torch.ones(n + 1, 2, device="tpu")
            torch.tpu.synchronize()


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x: x.add_(1), lambda n: (torch.randn(n, 4),)),
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
    ],
)
def test_views_and_writes_of_varying_sizes(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]
) -> None:
    _check(function, make, most=1, op_count=4)


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


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (_gradient(lambda x: x[: 2 + len(x) // 2]), lambda n: (torch.randn(n, 4),)),
        (_gradient(lambda x: x[1 + len(x) // 5 :]), lambda n: (torch.randn(n, 4),)),
        (_gradient(lambda x: x[:, ::2]), lambda n: (torch.randn(n, n),)),
        (_gradient(lambda x: x[-2:]), lambda n: (torch.randn(n, 4),)),
        (_gradient(lambda x: x[len(x) // 2 + 1]), lambda n: (torch.randn(n, 4),)),
        (_gradient(lambda x, i: x[i]), lambda n: (torch.randn(n, 4), torch.randint(0, n, (n,)))),
        (torch.nonzero, lambda n: (torch.ones(n, 4) - torch.eye(n, 4),)),
        (_gradient(_recurrent), lambda n: (torch.randn(n, 2, 4), *WEIGHTS)),
    ],
)
def test_parts_and_positions_of_varying_sizes(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]
) -> None:
    _check(function, make, most=2, op_count=8)


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


def test_layers_of_several_widths_keep_programs_of_their_own(monkeypatch) -> None:
    found = []
    monkeypatch.setattr(eager_sizes, "program", lambda *args: found.append(args))
    widths = [8, 24, 40, 56, 72, 88]
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))
    model.to("tpu")
    torch.tpu.synchronize()
    with torch.no_grad():
        x = torch.randn(4, 8)
        actual = model(x.to("tpu"))
    torch.tpu.synchronize()
    with torch.tpu.set_eager_mode("strict"):
        exact = model(x.to("tpu"))
    assert torch.equal(actual.cpu(), exact.cpu())
    assert not found


def test_strict_does_not_pad() -> None:
    with torch.tpu.set_eager_mode("strict"):
        before = _compiles()
        for size in SIZES:
            torch.erfinv(torch.rand(size, 3, device="tpu"))
        assert _compiles() - before >= len(SIZES)


def test_an_index_out_of_range_names_the_users_line() -> None:
    table = torch.randn(6, 4, device="tpu")
    for size in SIZES:
        F.embedding(torch.zeros(size, dtype=torch.int64, device="tpu"), table)
        torch.tpu.synchronize()
    index = torch.full((8,), 9, device="tpu")
    with pytest.raises(
        IndexError, match=r"out of range(?!.*compiled graph)[\s\S]*test_eager_sizes"
    ):
        for size in (8, 8):
            F.embedding(index[:size], table)
            torch.tpu.synchronize()


def test_calls_of_sizes_that_never_come_again_are_forgotten() -> None:
    x = torch.randn(120, 120, device="tpu")
    for rows, columns in itertools.product(range(2, 112), range(2, 112)):
        y = torch.tanh(x[:rows, :columns])
        torch.tpu.synchronize()
    assert sum(type(each) is PaddedCall for each in gc.get_objects()) < 9000
    torch.testing.assert_close(y.cpu(), torch.tanh(x.cpu()[:111, :111]), rtol=1e-4, atol=1e-5)


def test_draws_are_those_of_strict() -> None:
    def drawn(size: int) -> Tensor:
        torch.manual_seed(size)
        return F.dropout(torch.ones(size, 5, device="tpu"), 0.5)

    found = []
    for size in SIZES:
        found.append(drawn(size))
        torch.tpu.synchronize()
    with torch.tpu.set_eager_mode("strict"):
        for size, values in zip(SIZES, found, strict=True):
            assert torch.equal(values.cpu(), drawn(size).cpu())


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


def test_a_decoding_loop_with_a_growing_cache_compiles_few_programs() -> None:
    torch.manual_seed(0)
    model, x = _Attention(), torch.randn(1, 3, 16)

    def decode(device: str, tokens: int) -> list[float]:
        step, cache, found = x.to(device), None, []
        with torch.no_grad():
            for _ in range(tokens):
                y, cache = model.to(device)(step, cache)
                step = y[:, -1:].tanh()
                found.append(y[0, -1, 0].item())
        return found

    expected = decode("cpu", 60)
    decode("tpu", 5)
    before = _compiles()
    actual = decode("tpu", 60)
    # Caches of 16 and 64 entries: joining and attention.
    assert _compiles() - before <= 8
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_loop_that_never_stops_for_the_host_compiles_few_programs_too() -> None:
    x = torch.rand(1, 4)

    def grown(device: str) -> Tensor:
        row, rows = x.to(device), x.to(device)
        for _ in range(200):
            rows = torch.cat([rows, row], 0)
            row = (rows.softmax(0) * rows).sum(0, keepdim=True)
        return rows.cpu()

    expected = grown("cpu")
    before = _compiles()
    torch.testing.assert_close(grown("tpu"), expected, rtol=1e-4, atol=1e-5)
    # Four ops: sizes until the last 32 calls are the same twice, then buckets up to 256.
    assert _compiles() - before <= 4 * (10 + 4)


def test_parameters_of_several_shapes_keep_programs_of_their_own(monkeypatch) -> None:
    found = []
    program = eager_sizes.program
    monkeypatch.setattr(eager_sizes, "program", lambda *args: found.append(args) or program(*args))
    parameters = [torch.ones(3 + i % 5 * (i % 3 + 1), 4, device="tpu") for i in range(40)]
    for parameter in parameters:
        parameter.mul_(0.5).add_(1).sqrt_()
    torch.tpu.synchronize()
    assert not found


def test_training_on_batches_of_varying_length() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 11)
        )
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for size in SIZES * 2:
            tokens = torch.arange(2 * size).reshape(2, size).remainder(11).to(device)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.testing.assert_close(train("tpu"), train("cpu"), rtol=1e-4, atol=1e-5)


def test_op_of_varying_size_between_two_compiled_graphs() -> None:
    def counted(x: Tensor) -> Tensor:
        return (x * 2).bincount(minlength=6) + 1

    compiled = torch.compile(counted, backend="tpu", dynamic=True)
    before = dict(eager_sizes.reasons)
    for size in SIZES:
        x = torch.randint(0, 3, (size,))
        assert torch.equal(compiled(x.to("tpu")).cpu(), counted(x))
    assert dict(eager_sizes.reasons) == before, "ran at true sizes"


def test_element_of_a_tensor_of_varying_size_is_a_scalar() -> None:
    for size in SIZES:
        x = torch.arange(1.0, size + 1).sin()
        y = x.to("tpu")
        for i in (0, size - 1):
            assert bool(y[i] != torch.ceil(y[i])) == bool(x[i] != torch.ceil(x[i]))
        y[0].mul_(3)
        x[0].mul_(3)
        assert torch.equal(y.cpu(), x)
