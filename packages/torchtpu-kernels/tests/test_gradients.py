# SPDX-License-Identifier: Apache-2.0
"""Derivatives and batching of kernels, against CPU PyTorch's formula."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_kernels.pallas import custom_jax_kernel


@custom_jax_kernel
def wave(x, y):
    """`(3, 4)` and `(4,)` to `(3, 4)` and a scalar."""
    return jnp.sin(x) * y, (x + y).sum()


def reference(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * y, (x + y).sum()


def operands(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(3, 4, generator=generator), torch.randn(4, generator=generator)
    return tuple(t.to(device).requires_grad_() for t in pair)  # type: ignore[return-value]


def test_gradients_equal_the_formulas() -> None:
    gradients = []
    for function, device in ((wave, "tpu"), (reference, "cpu")):
        x, y = operands(device)
        a, b = function(x, y)
        (a.square().sum() + 3 * b).backward()
        gradients.append((x.grad.cpu(), y.grad.cpu()))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected)


def test_result_without_cotangent_counts_as_zero() -> None:
    x, y = operands("tpu")
    wave(x, y)[1].backward()
    assert torch.equal(x.grad.cpu(), torch.ones(3, 4))
    assert torch.equal(y.grad.cpu(), torch.full((4,), 3.0))


def test_operand_that_needs_no_gradient_gets_none() -> None:
    x, y = operands("tpu")
    wave(x.detach(), y)[0].sum().backward()
    assert x.grad is None
    torch.testing.assert_close(y.grad.cpu(), x.detach().cpu().sin().sum(0))


def test_second_derivative() -> None:
    x, y = operands("tpu")
    (first,) = torch.autograd.grad(wave(x, y)[0].sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second.cpu(), (-x.sin() * y).detach().cpu())


def test_integer_operands_and_results_have_no_gradient() -> None:
    kernel = custom_jax_kernel(lambda table, index: (table[index] * 2, index + 1))
    table = torch.randn(5, 2, device="tpu", requires_grad=True)
    index = torch.tensor([0, 3, 3], device="tpu")
    rows, following = kernel(table, index)
    rows.sum().backward()
    expected = torch.zeros(5, 2)
    expected[0], expected[3] = 2, 4
    assert torch.equal(table.grad.cpu(), expected)
    assert following.cpu().tolist() == [1, 4, 4]


def test_gradient_of_list_operands() -> None:
    kernel = custom_jax_kernel(lambda parts: parts[0] * parts[1])
    a, b = (torch.randn(3, device="tpu", requires_grad=True) for _ in range(2))
    kernel([a, b]).sum().backward()
    assert torch.equal(a.grad.cpu(), b.detach().cpu())
    assert torch.equal(b.grad.cpu(), a.detach().cpu())


def test_custom_vjp_of_the_function_is_used() -> None:
    @jax.custom_vjp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g * 10,))
    x = torch.tensor([0.4, 1.6], device="tpu", requires_grad=True)
    y = custom_jax_kernel(straight_through)(x)
    y.sum().backward()
    assert y.detach().cpu().tolist() == [0.0, 2.0]
    assert x.grad.cpu().tolist() == [10.0, 10.0]


def test_vmap_equals_a_loop() -> None:
    x, y = (t.detach() for t in operands("tpu"))
    batched = torch.vmap(lambda row: wave(row, y)[0])(x)
    looped = torch.stack([wave(row, y)[0] for row in x])
    torch.testing.assert_close(batched.cpu(), looped.cpu())


def test_kernel_is_part_of_a_compiled_program() -> None:
    pytest.importorskip("torchtpu_compile", reason="compiled programs are torchtpu-compile's")

    def model(x: Tensor, y: Tensor) -> Tensor:
        return wave(x * 2, y)[0].relu()

    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    x, y = operands("tpu")
    compiled(x.detach(), y.detach())
    before = torch.tpu.counters()["runs"]
    actual = compiled(x.detach(), y.detach())
    assert torch.tpu.counters()["runs"] - before == 1
    torch.testing.assert_close(actual.cpu(), model(x, y).detach().cpu())
    compiled(x, y).sum().backward()
    cx, cy = operands("cpu")
    reference(cx * 2, cy)[0].relu().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), cx.grad)
    torch.testing.assert_close(y.grad.cpu(), cy.grad)


def test_nested_results_and_aliases_inside_a_compiled_graph() -> None:
    pytest.importorskip("torchtpu_compile", reason="compiled programs are torchtpu-compile's")
    kernel = custom_jax_kernel(lambda a: {"new": (a + 1, None, 5)})
    in_place = custom_jax_kernel(lambda a: a * 3, input_output_aliases={0: 0})

    def model(x: Tensor) -> Tensor:
        result = kernel(x)["new"]
        in_place(x)
        return result[0] * result[2]

    x = torch.ones(3, device="tpu")
    actual = torch.compile(model, backend="tpu", fullgraph=True)(x)
    assert torch.equal(actual.cpu(), torch.full((3,), 10.0))
    assert torch.equal(x.cpu(), torch.full((3,), 3.0))
