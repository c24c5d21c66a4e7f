# SPDX-License-Identifier: Apache-2.0
"""JAX's flash attention kernels, interpreted, against CPU PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental.pallas import tpu as pltpu
from torchtpu_core.lowering import attention, flash_attention, layout, unread
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.targets import parse_target
from torchtpu_core.xla_tpu.lowering import for_tpu


@pytest.mark.parametrize(
    ("is_causal", "key_heads", "queries", "keys"),
    [
        *[(False, 2, 256, 256), (True, 2, 256, 256), (True, 1, 256, 256)],
        *[(False, 2, 120, 250), (True, 1, 250, 250), (True, 2, 250, 120), (False, 1, 256, 120)],
    ],
)
def test_flash_attention_and_its_gradients_equal_cpus(
    is_causal: bool, key_heads: int, queries: int, keys: int
) -> None:
    torch.manual_seed(0)
    sizes = ((2, queries), (key_heads, keys), (key_heads, keys))
    given = [torch.randn(1, *size, 64, requires_grad=True) for size in sizes]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *given, is_causal=is_causal, enable_gqa=True
    )
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    arrays = [jnp.asarray(t.detach().numpy()) for t in given]
    options = {"is_causal": is_causal, "scale": 64**-0.5}
    with pltpu.force_tpu_interpret_mode():
        out, sums = flash_attention.forward(*arrays, **options)
        alone, _ = flash_attention.forward(*arrays, **options, statistics=False)
        grads = flash_attention.backward(
            jnp.asarray(gradient.numpy()), *arrays, out, sums, **options
        )
        with layout.remembering():
            tokens = jnp.asarray(gradient.numpy()).transpose(0, 2, 1, 3)
            same = flash_attention.backward(
                layout.permuted(tokens, (0, 2, 1, 3)), *arrays, out, sums, **options
            )
    for found in (out, alone):
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for found, tensor in zip([*grads, *same], [*given, *given], strict=True):
        np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_flash_attention_applies_to_many_scores_on_a_tpu() -> None:
    x, near, few = (jnp.zeros((1, 2, length, 64)) for length in (384, 500, 256))
    assert not flash_attention.applies(x, x, x, None, 0.0)
    with for_tpu(parse_target("v5e:2x2")):
        assert flash_attention.applies(x, x, x, None, 0.0)
        assert flash_attention.applies(near, near, near, None, 0.0)
        assert not flash_attention.applies(few, few, few, None, 0.0)
        assert not flash_attention.applies(x, x, x, None, 0.1)
        assert not flash_attention.applies(x, x, x, x, 0.0)


def test_what_kernels_want_more_of_is_made_in_the_backward_pass_only() -> None:
    """XLA would keep statistics in all lanes, and keys repeated, from the forward pass."""
    wide, narrow = (jax.ShapeDtypeStruct((1, heads, 128, 128), jnp.bfloat16) for heads in (4, 2))
    sums = jax.ShapeDtypeStruct((1, 4, 128), jnp.float32)

    def gradients(grad, query, key, value, out, log_sums):
        return flash_attention.backward(
            grad, query, key, value, out, log_sums, is_causal=False, scale=1.0
        )

    jaxpr = jax.make_jaxpr(gradients)(wide, wide, narrow, narrow, wide, sums).jaxpr
    barriers = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "optimization_barrier"]
    assert len(barriers) == 1
    # It holds them until what depends on the output's gradient is there.
    log_sums, along, *keys = barriers[0].invars
    assert [log_sums, *keys] == [jaxpr.invars[5], *jaxpr.invars[2:4]]
    assert along.aval.shape == sums.shape
    assert along not in jaxpr.invars


@pytest.mark.parametrize("of_tokens", [True, False])
def test_gradients_read_the_output_as_the_projection_behind_it_does(of_tokens: bool) -> None:
    """As tokens with heads side by side; XLA would keep it with padded features, too."""
    shape, sums = (2, 4, 384, 64), jax.ShapeDtypeStruct((2, 4, 384), jnp.float32)
    tokens = (2, 384, 4, 64) if of_tokens else shape
    grad, heads = (jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in (tokens, shape))

    def gradients(grad, *arrays):
        grad = layout.permuted(grad, (0, 2, 1, 3)) if of_tokens else grad
        return flash_attention.backward(grad, *arrays, is_causal=True, scale=1.0)

    with layout.remembering():
        jaxpr = jax.make_jaxpr(gradients)(grad, *[heads] * 4, sums).jaxpr
    readers = [eqn.primitive.name for eqn in jaxpr.eqns if jaxpr.invars[4] in eqn.invars]
    products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    shapes = [v.aval.shape for product in products for v in product.invars]
    if of_tokens:
        assert (readers, shapes) == (["transpose"], [(2 * 384, 4 * 64), (4 * 64, 4)])
    else:
        assert (readers, shapes) == (["convert_element_type"], [])


def test_kernel_writes_no_statistics_that_nobody_reads() -> None:
    query = jax.ShapeDtypeStruct((1, 2, 512, 64), jnp.bfloat16)

    def attended(query: jax.Array) -> jax.Array:
        rng = Rng(np.uint64(0), np.uint64(0))
        return attention.fused_attention(query, query, query, rng=rng)[0]

    written = []
    for ignored in ((), {1}):
        with for_tpu(parse_target("v5e:1x1")), unread.results(ignored):
            text = str(jax.make_jaxpr(lambda query: attended(query))(query))
        written.append(text.count("f32[1,2,512,128] = ") + text.count("f32[1,2,512,128] "))
    assert written[0] > written[1] == 0
