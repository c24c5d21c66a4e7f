# SPDX-License-Identifier: Apache-2.0
"""Kernels in compiled functions whose numbers and sizes change from call to call."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_kernels.pallas import custom_jax_kernel


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


def test_sizes_that_change_are_told_as_the_reason_of_the_graph_break() -> None:
    compiled = torch.compile(total, backend="tpu", fullgraph=True)
    compiled(torch.ones(4, device="tpu"), 2)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="dynamic=False"):
        compiled(torch.ones(5, device="tpu"), 2)


def test_sizes_that_change_without_open_sizes_are_graphs_of_their_own() -> None:
    compiled = torch.compile(total, backend="tpu", fullgraph=True, dynamic=False)
    for n in (4, 5, 6):
        x = torch.linspace(0, 1, n)
        expected = (torch.sin(x * 2) * 2 + 1).sum()
        assert compiled(x.to("tpu"), 2).item() == pytest.approx(expected.item(), rel=1e-6)
