# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention and the transformer fast paths against CPU PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchtpu_core.lowering import attention, layout, mxu, transformer, view_ops
from torchtpu_core.testing.lowering import assert_close, check, lower

_GENERATOR = torch.Generator().manual_seed(0)
_ROWS = {row.overload: row for row in attention.TABLE}
NAME = "aten::_scaled_dot_product_fused_attention_overrideable"
CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


def run(overload: str, *arguments: Any, seed: int = 0, **keywords: Any) -> Any:
    return lower(_ROWS[overload], arguments, keywords, seed)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention call; the bias is made by `bias_of`."""

    queries: int = 5
    keys: int = 7
    key_heads: int = 4
    value_size: int = 8
    causal: bool = False
    bias: str = ""
    scale: float | None = None
    dtype: torch.dtype = torch.float32


CASES = {
    "plain": Case(),
    "causal": Case(keys=5, causal=True),
    "causal, more keys": Case(causal=True),
    "scaled": Case(scale=0.3),
    "other value size": Case(value_size=6),
    "bias": Case(bias="full"),
    "broadcast bias": Case(bias="broadcast"),
    "bias hides a row": Case(bias="hiding"),
    "bool mask": Case(bias="bool"),
    "grouped heads": Case(key_heads=2),
    "float64": Case(dtype=torch.float64),
}


def bias_of(case: Case) -> Tensor | None:
    shape = (case.queries, case.keys)
    if case.bias == "full":
        return rand(2, 4, *shape).requires_grad_()
    if case.bias == "broadcast":
        return rand(4, 1, case.keys).requires_grad_()
    if case.bias == "hiding":
        bias = rand(1, 1, *shape)
        bias[..., 0, :] = bias[..., 1, 2] = float("-inf")
        return bias.requires_grad_()
    if case.bias == "bool":
        return torch.rand(2, 1, *shape, generator=_GENERATOR) > 0.4
    return None


@pytest.mark.parametrize("name", CASES)
def test_attention_and_gradients_equal_the_unfused_form(name: str) -> None:
    c = CASES[name]
    q = rand(2, 4, c.queries, 8, dtype=c.dtype).requires_grad_()
    k = rand(2, c.key_heads, c.keys, 8, dtype=c.dtype).requires_grad_()
    v = rand(2, c.key_heads, c.keys, c.value_size, dtype=c.dtype).requires_grad_()
    bias = bias_of(c)
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, bias, 0.0, c.causal, scale=c.scale, enable_gqa=c.key_heads != 4
        )
    learned = bias is not None and bias.requires_grad
    leaves = (q, k, v, bias) if learned else (q, k, v)
    grad = rand(*expected.shape, dtype=c.dtype)
    gradients = torch.autograd.grad(expected, leaves, grad)

    saved = run(NAME, q, k, v, bias, 0.0, c.causal, False, scale=c.scale)
    assert_close(saved[0], expected.detach())
    mask = [True, True, True, learned]
    actual = run(
        f"{NAME}_backward",
        grad, q, k, v, bias, mask, saved[0], saved[1], None, None,
        c.queries, c.keys, 0.0, c.causal, saved[6], saved[7],
        scale=c.scale,
    )  # fmt: skip
    assert_close(actual[: len(leaves)], list(gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_row_that_sees_no_key_gives_zeros_and_an_infinite_logarithm(dtype: torch.dtype) -> None:
    query, key, value = (rand(1, 1, 2, 4, dtype=dtype) for _ in range(3))
    bias = torch.tensor([[0.0, -1.0], [-torch.inf, -torch.inf]], dtype=dtype)[None, None]
    out, logs = run(NAME, query, key, value, bias)[:2]
    scores = (query @ key.mT / 2 + bias)[0, 0, 0]
    assert_close(out[0, 0, 0], torch.softmax(scores, -1) @ value[0, 0])
    assert_close(logs[0, 0, 0], scores.logsumexp(-1))
    assert not out[0, 0, 1].any()
    assert logs[0, 0, 1] == torch.inf


def test_softmax_before_the_product_makes_no_choices() -> None:
    """A choice between values would keep XLA:CPU from making one kernel of it."""
    query = jnp.ones((1, 2, 8, 4))
    program = jax.jit(lambda q: attention.attend(q, q, q)[0]).lower(query).as_text()
    assert "stablehlo.exponential" in program
    assert "stablehlo.select" not in program


@pytest.mark.parametrize("bias_shape", [None, (6, 6), (2, 1, 6, 6), (4, 6, 6), (2, 4, 1, 6)])
def test_heads_that_share_keys_use_the_fused_kernel(bias_shape: tuple[int, ...] | None) -> None:
    """Forward and backward as on the CPU, and no key is repeated."""
    case = [rand(2, 4, 6, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8)]
    bias = [] if bias_shape is None else [rand(*bias_shape)]
    found = []
    for device in ("cpu", "tpu"):
        leaves = [t.to(device).detach().requires_grad_() for t in (*case, *bias)]
        out = torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=not bias, enable_gqa=True
        )
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert "FusedAttention" in type(out.grad_fn).__name__
    assert_close([t.cpu() for t in found[1]], found[0])


def test_heads_that_share_keys_are_multiplied_together() -> None:
    query, key = jnp.ones((1, 8, 4, 16)), jnp.ones((1, 2, 32, 16))
    program = jax.jit(lambda q, k: attention.attend(q, k, k)[0]).lower(query, key).as_text()
    assert program.count("stablehlo.dot_general") == 2
    assert "tensor<1x2x16x32xf32>" in program  # scores of the four heads of a group at once
    assert "tensor<1x8x32x16xf32>" not in program  # keys for each head


def test_attention_bfloat16_is_near_the_exact_one() -> None:
    q, k, v = (rand(2, 4, 6, 8, dtype=torch.bfloat16) for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(run(NAME, q, k, v)[0], exact.bfloat16(), rtol=2e-2, atol=2e-2)


def test_attention_dropout_keeps_the_expected_share_and_scales_it() -> None:
    q, k = rand(1, 2, 64, 8), rand(1, 2, 64, 8)
    weights = torch.softmax(q @ k.mT / 8**0.5, -1)
    factor = run(NAME, q, k, torch.eye(64).expand(1, 2, 64, 64), None, 0.3)[0] / weights
    dropped = factor.abs() < 0.1
    # 8192 draws: the share lies within six standard deviations, 6 * sqrt(0.21 / 8192).
    assert abs(dropped.double().mean() - 0.3) < 0.031
    torch.testing.assert_close(factor[~dropped], torch.full_like(factor[~dropped], 1 / 0.7))


def test_attention_dropout_backward_uses_the_mask_of_the_forward() -> None:
    q, k, v, grad = (rand(1, 2, 6, 8) for _ in range(4))
    eye = torch.eye(6).expand(1, 2, 6, 6)
    saved = run(NAME, q, k, v, None, 0.4, seed=11)
    factor = run(NAME, q, k, eye, None, 0.4, seed=11)[0] / torch.softmax(q @ k.mT / 8**0.5, -1)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = (torch.softmax(leaves[0] @ leaves[1].mT / 8**0.5, -1) * factor) @ leaves[2]
    assert_close(saved[0], out.detach())
    actual = run(
        f"{NAME}_backward",
        grad, q, k, v, None, [True, True, True, False], saved[0], saved[1], None, None,
        6, 6, 0.4, False, saved[6], saved[7],
    )  # fmt: skip
    assert_close(actual[:3], list(torch.autograd.grad(out, leaves, grad)))


@pytest.mark.parametrize("causal", [False, True])
def test_cpu_flash_attention_overloads_equal_cpu(causal: bool) -> None:
    q, k, v, grad = (rand(2, 3, 5, 8) for _ in range(4))
    check(CPU, q, k, v, 0.0, causal, table=attention.TABLE)
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    arguments = (grad, q, k, v, out, log_sums, 0.0, causal)
    check(f"{CPU}_backward", *arguments, table=attention.TABLE)


D, H, T = 8, 2, 3
MASKS: dict[int | None, tuple[int, ...]] = {None: (), 0: (T, T), 1: (2, T), 2: (2, H, T, T)}


def mask_of(mask_type: int | None) -> Tensor | None:
    if mask_type is None:
        return None
    mask = torch.rand(MASKS[mask_type], generator=_GENERATOR) > 0.5
    mask[..., 0] = False
    return mask


@pytest.mark.parametrize("mask_type", MASKS)
@pytest.mark.parametrize("weights", [(True, True), (True, False), (False, True)])
def test_native_multi_head_attention_equals_cpu(
    mask_type: int | None, weights: tuple[bool, bool]
) -> None:
    x = rand(2, T, D)
    parameters = (D, H, rand(3 * D, D), rand(3 * D), rand(D, D), rand(D))
    arguments = (x, x, x, *parameters, mask_of(mask_type), *weights, mask_type)
    check("aten::_native_multi_head_attention", *arguments, table=transformer.TABLE)


@pytest.mark.parametrize("mask_type", MASKS)
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer_equals_cpu(mask_type: int | None, norm_first: bool) -> None:
    attention_parameters = (D, H, rand(3 * D, D), rand(3 * D), rand(D, D), rand(D))
    norms = (rand(D), rand(D), rand(D), rand(D))
    feed_forward = (rand(16, D), rand(16), rand(D, 16), rand(D))
    check(
        "aten::_transformer_encoder_layer_fwd",
        rand(2, T, D), *attention_parameters, not norm_first, norm_first, 1e-5,
        *norms, *feed_forward, mask_of(mask_type), mask_type,
        table=transformer.TABLE,
    )  # fmt: skip


def test_transform_bias_rescale_qkv_equals_cpu() -> None:
    arguments = (rand(2, T, 3 * D), rand(3 * D), H)
    check("aten::_transform_bias_rescale_qkv", *arguments, table=transformer.TABLE)


def test_gradients_of_large_scores_are_as_close_as_the_scores_allow() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (9 * torch.randn(4, 4, n, 8, generator=generator) for n in (6, 16, 16))
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        reference = torch.nn.functional.scaled_dot_product_attention(*exact)
    slope = torch.randn(4, 4, 6, 8, generator=generator)
    expected = torch.autograd.grad(reference, exact, slope.double())
    out, log_sums = run(CPU, q, k, v)
    actual = run(f"{CPU}_backward", slope, q, k, v, out, log_sums, 0.0, False)
    for a, e in zip(actual, expected, strict=True):
        assert (torch.as_tensor(a).double() - e).abs().max() < 1e-5 * e.abs().max()


def test_scores_that_the_gradient_computes_again_are_not_kept_on_a_tpu() -> None:
    query = key = value = out = jnp.ones((1, 2, 5, 4))

    def function(grad: jax.Array, log_sums: jax.Array) -> Any:
        given = grad, query, key, value, None, out, log_sums
        return attention.attend_backward(*given, is_causal=False, scale=None)[:3]

    def text() -> str:
        return str(jax.make_jaxpr(lambda *x: function(*x))(query, jnp.zeros((1, 2, 5))))

    assert "optimization_barrier" not in text()
    with mxu.for_platform("tpu"):
        assert text().count("optimization_barrier") == 1


def tokens_and_gradients(
    whole: bool, parts: bool, count: int
) -> tuple[str, list[Any], list[Tensor]]:
    """Attention of some tokens and its gradient as a TPU computes them: program, results, expected.

    Args:
        whole: query, key and value are parts of one projection.
        parts: the logarithms of the sums are not known to be of all keys.
        count: of tokens.
    """
    shape, split = (2, count, 3 * 128), (2, count, 3, 4, 32)
    x, slope = rand(*shape), rand(2, 4, count, 32)

    def function(x: jax.Array, slope: jax.Array) -> list[Any]:
        if whole:
            cut = view_ops.split_with_sizes(layout.reshaped(x, split), (1, 1, 1), 2)
            of = [layout.reshaped(one, (2, count, 4, 32)) for one in cut]
            given = [layout.permuted(one, (0, 2, 1, 3)) for one in of]
        else:
            cut = [one + 0 for one in jnp.split(x, 3, axis=2)]
            given = [
                layout.permuted(layout.reshaped(c, (2, count, 4, 32)), (0, 2, 1, 3)) for c in cut
            ]
        out, log_sums, _ = attention.attend(*given)
        out = out + 0 if parts else out
        log_sums = log_sums + 0 if parts else log_sums
        bias = None
        grads = attention.attend_backward(
            slope, *given, bias, out, log_sums, is_causal=False, scale=None
        )
        return [out, *grads[:3]]

    with mxu.for_platform("tpu"), layout.remembering():
        arrays = jnp.asarray(x.numpy()), jnp.asarray(slope.numpy())
        text = str(jax.make_jaxpr(function)(*arrays))
        found = jax.jit(function)(*arrays)
    q, k, v = (one.transpose(1, 2).detach().requires_grad_() for one in x.view(split).unbind(2))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return text, found, [out, *torch.autograd.grad(out, (q, k, v), slope)]


@pytest.mark.parametrize(
    ("whole", "parts", "count", "kept"),
    [
        (False, False, 9, True),
        (False, True, 9, True),
        (True, False, 9, True),
        (True, True, 9, True),
        (True, False, 104, True),  # heads take 1.23 times their bytes
        (False, False, 104, False),
    ],
)
def test_padded_heads_are_kept_as_tokens_for_the_gradient_on_a_tpu(
    whole, parts, count, kept
) -> None:
    text, found, expected = tokens_and_gradients(whole, parts, count)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one.tolist()), other.detach(), rtol=1e-4, atol=1e-5)
    (barrier,) = [line for line in text.splitlines() if "optimization_barrier" in line]
    made = barrier.partition("=")[0]
    assert (f"[2,{count},{384 if whole else 128}]" in made) == kept
    assert (made.count(f"[2,4,{count},32]") == 1) == kept  # the gradient's own operand
