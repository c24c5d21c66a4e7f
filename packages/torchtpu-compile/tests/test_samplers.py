# SPDX-License-Identifier: Apache-2.0
"""Samplers that torch has no sizes for: traced without running, one program for open sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torchtpu_compile import meta_kernels

SAMPLERS = pytest.mark.parametrize(
    "sampler",
    [torch._sample_dirichlet, lambda x: torch.binomial(x, x)],
    ids=["dirichlet", "binomial"],
)


def traced(sampler: Callable[[Tensor], Tensor], x: Tensor, is_open: bool) -> Tensor:
    """What tracing sees of a sample."""
    meta_kernels.register()
    FakeTensorMode.cache_clear()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        return sampler(mode.from_tensor(x, static_shapes=not is_open))


@pytest.mark.parametrize("is_open", [False, True])
@SAMPLERS
def test_tracing_a_sampler_of_the_device_draws_nothing(
    sampler: Callable[[Tensor], Tensor], is_open: bool
) -> None:
    x = torch.ones(3, 2, device="tpu")
    before = torch.tpu.get_rng_state()
    assert traced(sampler, x, is_open).shape == x.shape
    assert torch.equal(torch.tpu.get_rng_state(), before)


@SAMPLERS
def test_samplers_of_the_cpu_are_traced_as_torch_does(
    sampler: Callable[[Tensor], Tensor],
) -> None:
    """It runs them on zeros, which draws, and cannot do so for open sizes."""
    x = torch.ones(3, 2)
    assert traced(sampler, x, is_open=False).shape == x.shape
    with pytest.raises(UnsupportedOperatorException):
        traced(sampler, x, is_open=True)


def _gamma(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    drawn = torch._standard_gamma(x)
    return drawn.detach(), torch.autograd.grad(drawn.square().sum(), x)[0]


OPEN: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "poisson": lambda x: (torch.poisson(x),),
    "binomial": lambda x: (torch.binomial(x.round(), x / 20),),
    "gamma": _gamma,
    "dirichlet": lambda x: (torch._sample_dirichlet(x),),
    "parts of dirichlet": lambda x: (torch._sample_dirichlet(x.T),),
    "coins": lambda x: (torch.bernoulli(1 / (1 / x).ceil()),),
}


@pytest.mark.parametrize("name", OPEN)
def test_samples_of_open_sizes_share_programs_and_are_those_of_eager_mode(name: str) -> None:
    sampler = OPEN[name]
    compiled = torch.compile(sampler, backend="tpu", dynamic=True)
    counts = []
    for n in (20, 33, 47, 52):
        x = torch.linspace(0.5, 20, 3 * n).reshape(n, 3).to("tpu")
        torch.manual_seed(n)
        before = torch.tpu.counters()["programs"]
        found = [part.cpu() for part in compiled(x)]
        counts.append(torch.tpu.counters()["programs"] - before)
        if n in (20, 47):
            torch.manual_seed(n)
            expected = [part.cpu() for part in sampler(x)]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert counts[1:] == [0, 0, 0]
