# SPDX-License-Identifier: Apache-2.0
"""Graphs with open sizes write, alias and lay out memory as eager CPU PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program

SIZES = (5, 9, 14)


def check(function: Callable[..., Any], make: Callable[[int], tuple[Tensor, ...]]) -> None:
    """Results, inputs, strides and sharing at each size are those of the CPU, at padded sizes."""
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        on_cpu = make(n)
        on_tpu = tuple(x.to("tpu") for x in on_cpu)
        expected = tree_leaves((function(*on_cpu), on_cpu))
        actual = tree_leaves((compiled(*on_tpu), on_tpu))
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e)
            assert a.stride() == e.stride()
        assert sharing(actual) == sharing(expected)
    assert not bounded_program.reasons


def sharing(tensors: list[Tensor]) -> list[list[int]]:
    """For each tensor, which of them live in the same storage."""
    places = [t.untyped_storage()._cdata for t in tensors]
    return [[j for j, other in enumerate(places) if other == place] for place in places]


def rows(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 4),)


def write_whole(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    return x.sum(0)


def write_parts(x: Tensor) -> Tensor:
    x[1:].mul_(3)
    x[0] = 7
    return x * 2


def views_of_one_result(x: Tensor) -> Any:
    y = x + 1
    return y[1:], y.t(), y, y.view(-1)


@pytest.mark.parametrize("function", [write_whole, write_parts])
def test_input_of_open_size_is_written_without_a_program_per_size(function: Any) -> None:
    check(function, rows)


def test_view_of_open_size_is_written_where_it_lies() -> None:
    bases: list[Tensor] = []

    def inner(n: int) -> tuple[Tensor, ...]:
        bases.append(torch.randn(n + 3, 6))
        return (bases[-1][1 : n + 1, 2:5],)

    compiled = torch.compile(write_whole, backend="tpu", dynamic=True)
    for n in SIZES:
        (x,) = inner(n)
        base = bases[-1].to("tpu")
        torch.testing.assert_close(compiled(base[1 : n + 1, 2:5]).cpu(), write_whole(x))
        torch.testing.assert_close(base.cpu(), bases[-1])


def test_gradients_pass_an_input_that_the_graph_writes() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        x.add_(1)
        return (x * w).sum(0)

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for n in SIZES:
        x, w = torch.randn(n, 4), torch.randn(4, requires_grad=True)
        y, v = x.to("tpu"), w.detach().to("tpu").requires_grad_()
        function(x, w).sum().backward()
        compiled(y, v).sum().backward()
        torch.testing.assert_close(y.cpu(), x)
        torch.testing.assert_close(v.grad.cpu(), w.grad)


def test_results_that_are_views_of_one_tensor_share_it() -> None:
    check(views_of_one_result, rows)


def test_expanded_result_holds_its_elements_once() -> None:
    check(lambda x: (x + 1)[:, :1].expand(-1, 3), rows)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.permute(2, 0, 1) * 2,
        lambda x: x.transpose(0, 1) + 1,
        lambda x: (x[None] * 2).to(memory_format=torch.channels_last),
    ],
)
def test_result_keeps_the_order_of_dimensions_in_memory(function: Any) -> None:
    check(function, lambda n: (torch.randn(n, n + 1, 3),))


def marked(function: Any, x: Tensor, compiled: Any) -> Any:
    """Results and the gradient of the input, whose first dimension is open."""
    y = x.clone().to("tpu")
    torch._dynamo.mark_dynamic(y, 0)
    pairs = []
    for f, z in ((function, x.clone()), (compiled, y)):
        results = tree_leaves(f(z.requires_grad_()))
        sum(
            (r * torch.arange(1, r.numel() + 1).view(r.shape).to(r.device)).sum() for r in results
        ).backward()
        pairs.append([*(r.detach().cpu() for r in results), z.grad.cpu()])
    return pairs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.meshgrid(x[:, 0], x[:, 1], indexing="ij"),
        lambda x: x.t().clone(),
        lambda x: torch.nn.functional.interpolate(x.t()[None], scale_factor=2),
    ],
)
def test_view_of_an_input_has_the_elements_of_eager(function: Any) -> None:
    compiled = torch.compile(function, backend="tpu")
    for n in SIZES:
        expected, actual = marked(function, torch.randn(n, 3), compiled)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e)


def views_of_an_input_and_what_reads_them(x: Tensor, w: Tensor) -> Any:
    tokens = x.reshape(-1, x.shape[-1])
    chances, chosen = (tokens @ w).softmax(-1).topk(2)
    return tokens, chosen, chances


def test_backward_pass_reads_a_view_of_an_input_that_is_also_a_result() -> None:
    compiled = torch.compile(views_of_an_input_and_what_reads_them, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x, w = torch.randn(2, n, 6), torch.randn(6, 4, requires_grad=True)
        v = w.detach().to("tpu").requires_grad_()
        expected = views_of_an_input_and_what_reads_them(x, w)
        actual = compiled(x.to("tpu"), v)
        (expected[-1] * expected[-1]).sum().backward()
        (actual[-1] * actual[-1]).sum().backward()
        for a, e in zip((*actual, v.grad), (*expected, w.grad), strict=True):
            torch.testing.assert_close(a.cpu(), e)
    assert not bounded_program.reasons


def test_turned_result_whose_last_size_may_be_zero_lies_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        width = 2 * x.shape[1] - 8  # PyTorch's strides say max(1, width)
        turned = x.new_zeros(x.shape[0], 3, width).transpose(0, 1)
        turned[:, :, : width // 2] = x[:, : width // 2]
        return turned

    check(function, lambda n: (torch.randn(n, n + 1),))
