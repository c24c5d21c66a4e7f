# SPDX-License-Identifier: Apache-2.0
"""Ops that could see the padding of open sizes, one by one, against eager CPU PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program
from torchtpu_compile.bounded_rules import RULES

SIZES = (5, 9, 14)


def check(function: Any, make: Any, *, at_true_sizes: str = "") -> None:
    """Results at each size, at padded sizes, or at true ones for a reason with this text."""
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        operands = make(n)
        actual = tree_leaves(compiled(*[x.to("tpu") for x in operands]))
        for a, e in zip(actual, tree_leaves(function(*operands)), strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
    assert all(at_true_sizes and at_true_sizes in reason for reason in bounded_program.reasons)
    assert bool(bounded_program.reasons) == bool(at_true_sizes)


def test_norm_of_any_order_ignores_padding() -> None:
    def norms(x: Tensor) -> Any:
        norm = torch.linalg.vector_norm
        few = norm(x, -math.inf, 0), norm(x, -1, 0), norm(x, 0, 0)
        return few, norm(x, 1, 0), norm(x, 2, 0), norm(x, math.inf, 0)

    check(norms, lambda n: (torch.randn(n, 3),))


def test_distance_of_any_order_ignores_padding() -> None:
    def distances(x: Tensor) -> Any:
        y = x.exp()
        return torch.dist(x, y), torch.dist(x, y[:1], 1), torch.dist(x, y, math.inf)

    check(distances, lambda n: (torch.randn(n, 3),))


def test_padding_is_no_division_by_zero() -> None:
    def divisions(x: Tensor, y: Tensor) -> Any:
        down, up = torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")
        return down, up, x // y, x % y, torch.fmod(x, y), 7 % y

    check(divisions, lambda n: (torch.randint(-9, 9, (n, 2)), torch.randint(1, 5, (n, 1))))


def test_values_that_are_broadcast_are_added_once_per_true_index() -> None:
    def add(i: Tensor) -> Tensor:
        start = torch.zeros(6, 2, device=i.device)
        one = torch.ones((), device=i.device)
        return start.index_put((i,), one, accumulate=True)

    check(add, lambda n: (torch.randint(6, (n,)),))


def test_write_through_an_index_of_open_size_touches_true_places_only() -> None:
    def write(x: Tensor, i: Tensor) -> Any:
        y, z = x.clone(), x.clone()
        y[i] = 5.0
        z[:, i - 6] = -1.0
        return y, z

    check(write, lambda n: (torch.randn(6, 6), torch.randperm(6)[: n % 5 + 2]))


def test_index_beyond_the_true_size_is_an_error_when_written() -> None:
    def write(x: Tensor, i: Tensor) -> Tensor:
        return x.index_put((i,), torch.ones((), device=x.device))

    compiled = torch.compile(write, backend="tpu", dynamic=True)
    for rows in (4, 7):
        with pytest.raises(IndexError):
            compiled(torch.zeros(rows, 2, device="tpu"), torch.tensor([1, 7], device="tpu")).cpu()


def test_number_written_through_a_mask() -> None:
    def write(x: Tensor) -> Tensor:
        y = x.clone()
        y[y > 0] = 3.0
        return y.sum(0)

    check(write, lambda n: (torch.randn(n, 3),))


def _write_through_masks(x: Tensor, u: Tensor) -> Any:
    """Masks whose sizes the tracer does not know to be those of `x`."""
    a, b, c = x.clone(), x.clone(), x.clone()
    a[u < 0] = 0.25
    b[u[:, 0] < 0] = x[0]
    c[:, u[0] < 0] = u[:, :1]
    return a, b, c


def test_write_through_a_mask_of_another_open_size() -> None:
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        check(_write_through_masks, lambda n: (torch.randn(n, n + 1), torch.randn(n, n + 1)))


def test_mask_of_another_size_than_what_it_covers_is_an_error() -> None:
    def write(x: Tensor, u: Tensor) -> Tensor:
        return x.index_put((u < 0,), torch.ones((), device=x.device))

    with torch.fx.experimental._config.patch(use_duck_shape=False):
        compiled = torch.compile(write, backend="tpu", dynamic=True)
        x = torch.randn(6, 2)
        actual = compiled(x.to("tpu"), x.to("tpu")).cpu()
        assert torch.equal(actual, write(x, x))
        for rows in (5, 7):
            with pytest.raises(IndexError, match="shape of the mask"):
                compiled(x.to("tpu"), torch.randn(rows, 2, device="tpu")).cpu()


def _box_written(x: Tensor, y: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """As CutMix mixes two batches of images."""
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = y[..., top:bottom, left:right]
    return mixed * (1 - (bottom - top) * (right - left) / x[0, 0].numel())


def _box_read(x: Tensor, y: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    return (x * y)[..., top:bottom, left:right].mean((-1, -2))


@pytest.mark.parametrize("function", [_box_written, _box_read])
def test_box_between_two_changing_numbers_is_one_program(function: Any) -> None:
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    x, y = torch.randn(2, 2, 3, 16, 16)
    bounded_program.reasons.clear()
    torch._dynamo.utils.counters.clear()
    for box in ((2, 5, 3, 7), (3, 14, 4, 9), (6, 9, 2, 16)):
        given, expected = x.to("tpu").requires_grad_(), x.clone().requires_grad_()
        actual, wanted = compiled(given, y.to("tpu"), *box), function(expected, y, *box)
        torch.testing.assert_close(actual.cpu(), wanted, rtol=1e-4, atol=1e-5)
        actual.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close(given.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_gradient_by_frequency_counts_true_rows() -> None:
    table = torch.randn(6, 2, requires_grad=True)
    on_device = table.detach().to("tpu").requires_grad_()

    def function(i: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(i, weight, scale_grad_by_freq=True).sum()

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for n in SIZES:
        i = torch.randint(6, (n,))
        table.grad = on_device.grad = None
        function(i, table).backward()
        compiled(i.to("tpu"), on_device).backward()
        torch.testing.assert_close(on_device.grad.cpu(), table.grad)


def test_numbers_made_from_sizes_need_not_be_whole() -> None:
    def function(x: Tensor) -> Tensor:
        n, m = x.shape
        return x * n**-0.5 + 1.0 / m + math.sqrt(n) + n % 3

    check(function, lambda n: (torch.randn(n, n + 2),))


def test_ramps_in_fractional_steps() -> None:
    def function(x: Tensor) -> Any:
        n = x.shape[0]
        ramp = torch.arange(0, n, 0.75, device=x.device)
        return ramp.sum(), torch.arange(1, n + 2, 0.5, device=x.device) * 2, x.sum()

    check(function, lambda n: (torch.randn(n),))


def test_dimension_repeated_an_open_number_of_times() -> None:
    check(lambda x: x.repeat(x.shape[0], 2).cumsum(0), lambda n: (torch.randn(n, 3),))


def test_solution_from_factors_of_a_matrix_of_open_size() -> None:
    def function(x: Tensor, b: Tensor) -> Tensor:
        factors, pivots = torch.linalg.lu_factor(x)
        return torch.linalg.lu_solve(factors, pivots, b)

    def make(n: int) -> tuple[Tensor, ...]:
        return torch.randn(n, n) + 4 * torch.eye(n), torch.randn(n, 2)

    check(function, make)


def test_product_of_small_integers_of_open_sizes() -> None:
    def make(n: int) -> tuple[Tensor, ...]:
        a, b = (torch.randint(-9, 9, size, dtype=torch.int8) for size in ((n, n + 3), (n + 3, n)))
        return a, b

    check(lambda a, b: torch._int_mm(a, b).cumsum(0), make)


def test_product_of_reflections_of_an_open_size() -> None:
    def make(n: int) -> tuple[Tensor, ...]:
        return torch.geqrf(torch.randn(n + 4, 4))

    check(lambda x, tau: torch.linalg.householder_product(x, tau).cumsum(0), make)
    torch._dynamo.reset()
    check(torch.linalg.householder_product, lambda n: torch.geqrf(torch.randn(n + 1, n)))


def test_gradient_of_three_pieces_of_open_columns() -> None:
    """The last piece of an input is padded apart from the others; a sum keeps no tensor."""

    def function(x: Tensor, w: Tensor) -> Any:
        one, two, three = (x @ w).chunk(3, -1)
        return one * two + three, sum(piece.sum() for piece in w.chunk(3, -1))

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    bounded_program.reasons.clear()
    operands = torch.randn(2, 4), torch.randn(4, 15)
    found = []
    for run, device in ((function, "cpu"), (compiled, "tpu")):
        leaves = [x.detach().to(device).requires_grad_() for x in operands]
        torch._dynamo.mark_dynamic(leaves[1], 1)
        out, total = run(*leaves)
        (out.square().sum() + total).backward()
        found.append([out.detach().cpu(), *(x.grad.cpu() for x in leaves)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert not bounded_program.reasons


def test_op_that_fails_at_a_padded_size_runs_at_the_true_one(monkeypatch: Any) -> None:
    def rule(call: Any) -> Any:
        raise TypeError("an arm is too short")

    monkeypatch.setitem(RULES, "aten::cumsum", rule)
    check(lambda x: x.cumsum(0), lambda n: (torch.randn(n, 3),), at_true_sizes="too short")


def test_elements_chosen_by_a_mask_have_the_size_of_eager() -> None:
    def function(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    x = torch.randn(9)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        actual = torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu"))
    assert torch.equal(actual.cpu(), function(x))


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.chunk(2),
        lambda x: x.split(3, 1),
        lambda x: [piece.t() for piece in x.chunk(2, 1)],
        lambda x: x.t().unbind(0),
    ],
    ids=["chunk", "split of columns", "transposed", "unbind of columns"],
)
def test_pieces_of_an_input_that_requires_a_gradient_hold_its_values(cut: Any) -> None:
    compiled = torch.compile(cut, backend="tpu", dynamic=True)
    for rows, columns in ((10, 4), (14, 4), (9, 6)):
        start = torch.arange(1.0, rows * columns + 1).reshape(rows, columns)
        x = start.to("tpu").requires_grad_()
        pieces = compiled(x)
        expected = cut(start)
        for found, wanted in zip(pieces, expected, strict=True):
            assert torch.equal(found.detach().cpu(), wanted)
        sum((i + 1) * piece.sum() for i, piece in enumerate(pieces)).backward()
        reference = start.clone().requires_grad_()
        sum((i + 1) * piece.sum() for i, piece in enumerate(cut(reference))).backward()
        assert x.grad is not None
        assert torch.equal(x.grad.cpu(), reference.grad)
