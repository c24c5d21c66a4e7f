# SPDX-License-Identifier: Apache-2.0
"""Graphs with open sizes: one program for many sizes, results as at the true size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile import bounded_program

WEIGHT, BIAS, TABLE = torch.randn(5, 4), torch.randn(5), torch.randn(9, 4)
KERNEL = torch.randn(3, 2, 3, 3)
NORM = torch.randn(4)


def compiles() -> int:
    torch.tpu.synchronize()  # what is pending is not this test's
    return torch.tpu.counters()["compiles"]


def check(
    function: Callable[..., Any], make: Callable[[int], tuple[Tensor, ...]], *sizes: int
) -> int:
    """Compare with CPU eager at each size; returns how many programs were compiled."""
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    before, refused = compiles(), dict(bounded_program.reasons)
    for size in sizes:
        operands = make(size)
        actual = compiled(*[x.to("tpu") for x in operands])
        expected = function(*operands)
        pairs = zip(
            torch.utils._pytree.tree_leaves(actual),
            torch.utils._pytree.tree_leaves(expected),
            strict=True,
        )
        for a, e in pairs:
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
            assert a.is_contiguous() == e.is_contiguous()
    assert dict(bounded_program.reasons) == refused, "ran at true sizes"
    return compiles() - before


def test_reductions_and_softmax_do_not_see_padding() -> None:
    def function(x: Tensor) -> Any:
        parts = (x.mean(), x.var(1), x.std(0), x.amax(0), x.argmax(1), x.sum(0))
        return parts, x.softmax(-1), x.log_softmax(0), (x > 9).any(), x.prod(1)

    assert check(function, lambda n: (torch.randn(n, n + 2),), 3, 12, 7) == 1


def test_products_do_not_sum_over_padding() -> None:
    def function(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Any:
        tall = F.linear(y, weight, bias).relu()
        return x @ tall, x.t() @ x, x.flatten() @ x.flatten(), torch.bmm(tall, tall.mT)

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.randn(n, n), torch.randn(3, n, 4), WEIGHT, BIAS

    assert check(function, make, 3, 12) <= 2


def test_attention_does_not_look_at_padding() -> None:
    def function(q: Tensor, k: Tensor) -> Any:
        crossed = F.scaled_dot_product_attention(q, k, k)
        return crossed, F.scaled_dot_product_attention(q, q, q, is_causal=True)

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.randn(2, 2, n, 8), torch.randn(2, 2, n + 3, 8)

    if not _attention_takes_symbols():
        pytest.skip("the C++ extension was built before attention took symbolic sizes")
    assert check(function, make, 3, 12) == 1


def _attention_takes_symbols() -> bool:
    x = torch.randn(2, 2, 3, 8, device="tpu")
    torch._dynamo.mark_dynamic(x, 2)
    try:
        torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend="eager")(x)
    except RuntimeError:
        return False
    return True


def test_order_and_position_count_from_the_true_end() -> None:
    def function(x: Tensor) -> Any:
        sorted_ = x.sort(-1)[0], x.sort(0, descending=True)[1], x.topk(2, -1)[0]
        ends = x[:, -1], x[1:], x[:, -2:], x[:, :-1], x.flip(1), F.pad(x, (1, 2)) + 1
        return sorted_, ends, x.cumsum(0), x + torch.arange(x.shape[1], device=x.device)

    assert check(function, lambda n: (torch.randn(n, n + 3),), 3, 12) == 1


def test_joining_and_reshaping_move_true_data_only() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        joined = torch.cat([x, y, x], 1), torch.stack([x, x])
        return joined, (x * 2).flatten(), (x * 3).t().reshape(-1), x.tril() @ x.t()

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.randn(4, n), torch.randn(4, n + 2)

    assert check(function, make, 3, 12) == 1


def test_lookups_and_losses_ignore_padding() -> None:
    def function(x: Tensor, i: Tensor) -> Any:
        rows = F.embedding(i, TABLE.to(i.device))
        loss = F.cross_entropy(x.view(-1, 7), i.view(-1).clamp(max=6))
        normal = F.layer_norm(rows, (4,), NORM.to(i.device))
        return rows, loss, normal, x[0].gather(0, i[:, :1] % 2), F.mse_loss(x, x * 2)

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.randn(4, n, 7), torch.randint(9, (4, n))

    assert check(function, make, 3, 12) <= 2


def test_convolution_reads_zeros_beyond_the_true_border() -> None:
    def function(x: Tensor) -> Tensor:
        return F.conv2d(x, KERNEL.to(x.device), padding=1).relu()

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    before = compiles()
    for n in (5, 7, 12):
        x = torch.randn(2, 2, n, n + 1)
        on_device = x.to("tpu")
        for dim in (2, 3):
            torch._dynamo.mark_dynamic(on_device, dim)
        torch.testing.assert_close(compiled(on_device).cpu(), function(x), rtol=1e-4, atol=1e-5)
    assert compiles() - before == 1


def test_gradients_at_open_sizes_equal_cpu_eager() -> None:
    def function(w: Tensor, x: Tensor) -> Tensor:
        hidden = F.layer_norm(F.linear(x, w), (5,)).softmax(1)
        return (hidden.flatten(0, 1).square().sum(0) / x.shape[1]).sum()

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    weight, on_device = WEIGHT.clone().requires_grad_(), WEIGHT.to("tpu").requires_grad_()
    for n in (3, 11):
        x = torch.randn(2, n, 4)
        copies = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
        for f, w, z in ((function, weight, copies[0]), (compiled, on_device, copies[1])):
            w.grad = None
            f(w, z).backward()
        torch.testing.assert_close(on_device.grad.cpu(), weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(copies[1].grad.cpu(), copies[0].grad, rtol=1e-4, atol=1e-5)


def test_random_numbers_at_open_sizes_are_those_of_eager_mode() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.ones(5, 7, device="tpu")
    results = []
    for f in (function, torch.compile(function, backend="tpu", dynamic=True)):
        torch.manual_seed(3)
        results.append(f(x).cpu())
    assert torch.equal(results[0], results[1])


def test_op_without_a_rule_runs_at_true_sizes_and_says_why(caplog: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x @ x.t())

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x), rtol=1e-3, atol=1e-3)
    assert "one program per size, because" in caplog.text
    assert "test_dynamic_shapes.py" in caplog.text


def test_index_beyond_the_true_size_is_an_error_not_padding() -> None:
    compiled = torch.compile(lambda x, i: x[i], backend="tpu", dynamic=True)
    with pytest.raises(IndexError):
        compiled(torch.randn(5, device="tpu"), torch.tensor([2, 7], device="tpu")).cpu()


def test_cache_that_grows_by_one_compiles_per_bucket_not_per_length() -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Any:
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return F.scaled_dot_product_attention(q, keys, values), keys, values

    compiled = torch.compile(step, backend="tpu", dynamic=True)
    keys, values = torch.randn(2, 1, 2, 1, 8)
    on_tpu = keys.to("tpu"), values.to("tpu")
    before = torch.tpu.counters()["programs"]
    for _ in range(40):
        q, k, v = torch.randn(3, 1, 2, 1, 8)
        expected, keys, values = step(q, k, v, keys, values)
        actual, *on_tpu = compiled(q.to("tpu"), k.to("tpu"), v.to("tpu"), *on_tpu)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_tpu[0].cpu(), keys)
    assert torch.tpu.counters()["programs"] - before <= 8


def test_training_on_targets_with_sizes_of_their_own_runs_at_padded_sizes() -> None:
    table = torch.randn(7, 7, requires_grad=True)
    on_device = table.detach().to("tpu").requires_grad_()

    def loss_of(table: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(table[tokens].flatten(0, 1).tanh(), targets.flatten())

    compiled = torch.compile(loss_of, backend="tpu")
    refused = dict(bounded_program.reasons)
    for batch, length in ((2, 5), (3, 7), (5, 6), (4, 11)):
        tokens, targets = torch.randint(0, 7, (2, batch, length))
        table.grad = on_device.grad = None
        loss_of(table, tokens, targets).backward()
        loss = compiled(on_device, tokens.to("tpu"), targets.to("tpu"))
        loss.backward()
        torch.testing.assert_close(on_device.grad.cpu(), table.grad, rtol=1e-4, atol=1e-5)
    assert dict(bounded_program.reasons) == refused


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_product_of_open_columns_is_added_to_half_of_twice_as_many(rank: int) -> None:
    """Half of 8 columns of 16 is padded to 8, and 4 columns of a weight to 16."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        half = x[..., x.shape[-1] // 2 :]
        left = torch.ones(2, 3, device=x.device)
        if rank == 1:
            return torch.addmv(half[0, 0], weight.t(), left[0])
        if rank == 2:
            return torch.addmm(half[0], left, weight)
        return torch.baddbmm(half, left.expand(5, 2, 3), weight.expand(5, *weight.shape))

    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in (4, 6):
        x, weight = torch.randn(5, 2, 2 * n), torch.randn(3, n)
        actual = compiled(x.to("tpu"), weight.to("tpu"))
        torch.testing.assert_close(actual.cpu(), function(x, weight))
    assert not bounded_program.reasons
