# SPDX-License-Identifier: Apache-2.0
"""Kernels under `torch.func` and forward mode equal the same function of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torchtpu_kernels.errors import KernelArgumentError
from torchtpu_kernels.pallas import custom_jax_kernel

func = torch.func


@custom_jax_kernel
def kernel(x, w):
    """`(N, K)`, `(K, M)` -> `(N, M)`, and the index of the largest in each row."""
    y = jnp.tanh(x @ w)
    return y, jnp.argmax(y, axis=-1)


def reference(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return y, y.argmax(-1)


def loss(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda x, w: function(x, w)[0].sin().sum()


TRANSFORMS: dict[str, Callable[[Callable[..., Any], Tensor, Tensor], Any]] = {
    "grad": lambda f, x, w: func.grad(loss(f), (0, 1))(x, w),
    "vjp": lambda f, x, w: func.vjp(lambda v: f(x, v)[0], w)[1](torch.ones_like(x @ w)),
    "jvp": lambda f, x, w: func.jvp(lambda v: f(x, v)[0], (w,), (w.cos(),)),
    "vmap": lambda f, x, w: func.vmap(f, (0, None))(x[:, None], w),
    "per sample": lambda f, x, w: func.vmap(func.grad(loss(f), 1), (0, None))(x[:, None], w),
    "jacrev": lambda f, x, w: func.jacrev(lambda v: f(x, v)[0])(w),
    "jacfwd": lambda f, x, w: func.jacfwd(lambda v: f(x, v)[0])(w),
    "hessian": lambda f, x, w: func.hessian(lambda v: loss(f)(x, v))(w),
}


@pytest.fixture(autouse=True)
def precise() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_equals_the_same_of_torch_operators(name: str) -> None:
    x, w = torch.randn(3, 4, device="tpu"), torch.randn(4, 2, device="tpu")
    actual, expected = (TRANSFORMS[name](f, x, w) for f in (kernel, reference))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_forward_mode_outside_torch_func() -> None:
    x, w = torch.randn(3, 4, device="tpu"), torch.randn(4, 2, device="tpu")
    with forward_ad.dual_level():
        pushed = [
            forward_ad.unpack_dual(f(x, forward_ad.make_dual(w, w.cos()))[0]).tangent
            for f in (kernel, reference)
        ]
    torch.testing.assert_close(*pushed, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_writes_into_an_operand_is_refused() -> None:
    double = custom_jax_kernel(lambda x: x * 2, donate_argnums=0)
    x = torch.ones(3, device="tpu")
    with pytest.raises(KernelArgumentError, match="no transform of"):
        func.jvp(double, (x,), (x,))


def test_one_kernel_over_batches_of_different_sizes() -> None:
    double = custom_jax_kernel(lambda x: x * 2)
    for size in (3, 5):
        x = torch.randn(size, 4, device="tpu")
        torch.testing.assert_close(func.vmap(double)(x), x * 2)
