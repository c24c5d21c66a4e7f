# SPDX-License-Identifier: Apache-2.0
"""Kernels in compiled functions whose numbers and sizes change from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torchtpu_kernels.pallas import custom_jax_kernel, jax_op

bounded_program = pytest.importorskip(
    "torchtpu_compile.bounded_program", reason="compiled programs are torchtpu-compile's"
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Dynamo counts the graphs of a function over all that were compiled from it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@custom_jax_kernel(static_argnums=1)
def scaled_sine(x: jax.Array, factor: float) -> jax.Array:
    return jnp.sin(x) * factor


def total(x: Tensor, factor: float) -> Tensor:
    return (scaled_sine(x * 2, factor) + 1).sum()


@pytest.mark.parametrize("factors", [(3, 4, 5), (3.0, 4.0, 5.5), (2, True)])
def test_static_number_that_changes_stays_in_the_graph(factors: tuple[float, ...]) -> None:
    compiled = torch.compile(total, backend="tpu", fullgraph=True)
    x = torch.linspace(0, 1, 6)
    for factor in factors:
        expected = (torch.sin(x * 2) * factor + 1).sum()
        assert compiled(x.to("tpu"), factor).item() == pytest.approx(expected.item(), rel=1e-6)


@custom_jax_kernel
def paired(x: jax.Array) -> jax.Array:
    return x.reshape(-1, 2).sum(1)


def test_kernel_that_has_to_know_open_sizes_ends_the_graph_and_says_so() -> None:
    compiled = torch.compile(lambda x: paired(x) * 2, backend="tpu", fullgraph=True)
    compiled(torch.ones(4, device="tpu"))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="dynamic=False"):
        compiled(torch.ones(6, device="tpu"))


@custom_jax_kernel
def joined(x: jax.Array, y: jax.Array) -> dict[str, object]:
    return {"rows": jnp.concatenate([x, jnp.sin(y)]), "last": [x.sum(0), None, 3]}


@jax_op("torchtpu_tests::rooted")
def rooted(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1)


def mixed(x: Tensor, on_device: bool) -> Tensor:
    """Products and softmax around two kernels; `(n, 4)`."""
    weight = torch.arange(16.0, device=x.device).reshape(4, 4) / 16
    y = x @ weight
    if on_device:
        found = joined(y[1:], y * 2)
        rows, last = found["rows"], found["last"][0] * found["last"][2]
        rows = torch.ops.torchtpu_tests.rooted(rows)
    else:
        rows, last = torch.cat([y[1:], torch.sin(y * 2)]), y[1:].sum(0) * 3
        rows = rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + 1)
    return (rows @ weight).softmax(0) + last


def test_kernels_of_open_sizes_stay_in_one_graph_and_the_rest_serves_all_sizes() -> None:
    counter = CompileCounterWithBackend("tpu")
    compiled = torch.compile(mixed, backend=counter, fullgraph=True, dynamic=True)
    refused = dict(bounded_program.reasons)
    for n in (5, 9, 12, 7):
        x = torch.linspace(-1, 1, 4 * n).reshape(n, 4).requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        expected, found = mixed(x, False), compiled(on_device, True)
        torch.testing.assert_close(found.cpu(), expected)
        slope = torch.linspace(0, 1, expected.numel()).reshape(expected.shape)
        expected.backward(slope)
        found.backward(slope.to("tpu"))
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1
    assert bounded_program.reasons == refused


def add_one(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] + 1


@custom_jax_kernel
def one_more(x: jax.Array) -> jax.Array:
    return pl.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_pallas_kernel_of_open_size_stays_in_the_graph() -> None:
    compiled = torch.compile(
        lambda x: one_more(x * 2).sum(), backend="tpu", fullgraph=True, dynamic=True
    )
    for n in (5, 9):
        assert compiled(torch.ones(n, 8, device="tpu")).item() == 24 * n


def test_sizes_that_change_without_open_sizes_are_graphs_of_their_own() -> None:
    compiled = torch.compile(total, backend="tpu", fullgraph=True, dynamic=False)
    for n in (4, 5, 6):
        x = torch.linspace(0, 1, n)
        expected = (torch.sin(x * 2) * 2 + 1).sum()
        assert compiled(x.to("tpu"), 2).item() == pytest.approx(expected.item(), rel=1e-6)
