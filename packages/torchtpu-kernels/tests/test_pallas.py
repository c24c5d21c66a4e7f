# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels, interpreted on a simulated target."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from torchtpu_kernels.errors import KernelDtypeError
from torchtpu_kernels.pallas import custom_jax_kernel


def _matmul_block(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)


def pallas_matmul(x, y):
    """`(16, 32)` times `(32, 24)`, blocks of 8 rows and 12 columns."""
    return pl.pallas_call(
        _matmul_block,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((8, x.shape[1]), lambda i, j: (i, 0)),
            pl.BlockSpec((x.shape[1], 12), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((8, 12), lambda i, j: (i, j)),
    )(x, y)


@jax.custom_vjp
def matmul(x, y):
    return pallas_matmul(x, y)


matmul.defvjp(
    lambda x, y: (pallas_matmul(x, y), (x, y)),
    lambda saved, g: (g @ saved[1].T, saved[0].T @ g),
)


def _softmax_block(x_ref, o_ref):
    shifted = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=-1, keepdims=True))
    o_ref[...] = shifted / jnp.sum(shifted, axis=-1, keepdims=True)


def softmax(x):
    """Row-wise softmax of `(16, 24)`, blocks of 4 rows."""
    spec = pl.BlockSpec((4, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        _softmax_block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 4,),
        in_specs=[spec],
        out_specs=spec,
    )(x)


@pytest.fixture(autouse=True)
def precise_reference() -> None:
    torch.set_float32_matmul_precision("highest")


def test_matmul_kernel_and_its_gradients() -> None:
    x, y = torch.randn(16, 32), torch.randn(32, 24)
    on_device = [t.to("tpu").requires_grad_() for t in (x, y)]
    on_cpu = [t.clone().requires_grad_() for t in (x, y)]
    actual = custom_jax_kernel(matmul)(*on_device)
    expected = on_cpu[0] @ on_cpu[1]
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    actual.square().sum().backward()
    expected.square().sum().backward()
    for a, e in zip(on_device, on_cpu, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-4, atol=1e-4)


def test_softmax_kernel() -> None:
    x = torch.randn(16, 24)
    torch.testing.assert_close(custom_jax_kernel(softmax)(x.to("tpu")).cpu(), x.softmax(-1))


def test_bfloat16_operands_keep_their_dtype() -> None:
    x = torch.randn(16, 24).bfloat16()
    result = custom_jax_kernel(softmax)(x.to("tpu"))
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.cpu(), x.float().softmax(-1).bfloat16(), rtol=2e-2, atol=1e-3)


def test_kernel_inside_a_compiled_model() -> None:
    pytest.importorskip("torchtpu_compile", reason="compiled programs are torchtpu-compile's")
    kernel = custom_jax_kernel(softmax)
    compiled = torch.compile(lambda x: kernel(x * 2) + 1, backend="tpu", fullgraph=True)
    x = torch.randn(16, 24)
    torch.testing.assert_close(compiled(x.to("tpu")).cpu(), (x * 2).softmax(-1) + 1)


def test_64_bit_operands_are_refused_with_advice() -> None:
    x = torch.randn(16, 24, dtype=torch.float64, device="tpu")
    with pytest.raises(KernelDtypeError, match=r"operand 0 is float64.*\.float\(\)"):
        custom_jax_kernel(softmax)(x)


def test_reverse_mode_without_a_custom_vjp_is_an_error_of_jax() -> None:
    x = torch.randn(16, 24, device="tpu", requires_grad=True)
    y = custom_jax_kernel(softmax)(x)
    with pytest.raises(Exception, match="Linearization failed"):
        y.sum().backward()


def test_pipeline_helper_finds_the_simulated_chip() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def body(x_ref, o_ref):
        def add_one(block_in, block_out):
            block_out[...] = block_in[...] + 1.0

        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(add_one, grid=(2,), in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    def pipelined(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[anywhere],
            out_specs=anywhere,
        )(x)

    x = torch.randn(16, 128)
    assert torch.equal(custom_jax_kernel(pipelined)(x.to("tpu")).cpu(), x + 1)
