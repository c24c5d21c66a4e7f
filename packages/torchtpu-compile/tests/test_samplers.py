# SPDX-License-Identifier: Apache-2.0
"""Samplers that torch has no sizes for are traced without running them."""

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
