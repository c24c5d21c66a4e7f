# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, forward and backward.

Scores and probabilities are float32 for 16-bit inputs; the backward pass recomputes the
probabilities from the saved logarithm of their sums, and the dropout mask from the saved
seed and offset, so nothing of size T * S is kept. Output and logarithm given to the backward
pass may be those of more keys than it is given (ring attention). A query that may see no key
gives zeros; its saved logarithm is +inf, which makes its probabilities zero again.

Legend: B batch, H heads, K heads of keys or of values, T queries, S keys, E features of query and
key, V of value.
Reference: Dao et al., "FlashAttention", NeurIPS 2022, for the form of the backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import (
    dtypes,
    flash_attention,
    layout,
    matmul,
    mxu,
    padded_heads,
    unread,
)
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, native

#: Roundings, in units of the last place of the logarithm, that a sum of probabilities shows.
_ROUNDING = 4


def _batched(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int, out: np.dtype) -> jax.Array:
    """Contract one dimension of two `(B, H, ., .)` values."""
    return matmul.general(x, y, (((x_dim,), (y_dim,)), ((0, 1), (0, 1))), out)


def _folded(x: jax.Array, heads: int) -> jax.Array:
    """`(B, H, T, ...)` with the rows of all query heads that share a head of keys in one.

    So a key is multiplied with the queries of its whole group, and is not repeated for each.
    """
    batch, own, rows, *rest = x.shape
    return x if own == heads else x.reshape(batch, heads, own // heads * rows, *rest)


def _folded_bias(bias: jax.Array | None, query: jax.Array, heads: int) -> jax.Array | None:
    """A bias of `(B, H, T, S)`, or one that is broadcast to it, for folded scores."""
    own, rows = query.shape[1:3]
    if bias is None or own == heads:
        return bias
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if bias.shape[1:3] == (1, 1):
        return bias
    kept = 1 if bias.shape[1] == 1 else heads
    wide = jnp.broadcast_to(bias, (bias.shape[0], kept * (own // heads), rows, bias.shape[3]))
    return _folded(wide, kept)


def _alike(key: jax.Array, value: jax.Array, heads: int) -> tuple[jax.Array, jax.Array]:
    """Keys and values with as many heads as each other: with all of them if they had not."""
    if key.shape[1] == value.shape[1]:
        return key, value
    return flash_attention.repeated(key, heads), flash_attention.repeated(value, heads)


def _scale(query: jax.Array, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1] or 1) if scale is None else scale


def _scores(
    query: jax.Array,
    key: jax.Array,
    bias: jax.Array | None,
    is_causal: bool,
    scale: float | None,
    queries: int,
) -> jax.Array:
    """`(B, H, T, S)` scores before the softmax; -inf where a query may not look.

    Rows of a folded query begin again after each `queries`.
    """
    compute = dtypes.opmath(query.dtype)
    scores = _batched(query, key, 3, 3, compute) * compute.type(_scale(query, scale))
    if is_causal:
        rows = lax.broadcasted_iota(np.int32, scores.shape[2:], 0)
        if scores.shape[2] != queries:
            rows = lax.rem(rows, np.int32(queries))
        columns = lax.broadcasted_iota(np.int32, scores.shape[2:], 1)
        scores = jnp.where(columns <= rows, scores, compute.type(-np.inf))
    if bias is not None:
        if bias.dtype == np.bool_:
            return jnp.where(bias, scores, compute.type(-np.inf))
        scores = scores + bias.astype(compute)
    return scores


def _exponentials(scores: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """exp(scores) over that of the largest in the row, their sums, and the log of the true sums.

    A row without a key to see has exponentials of 0, a sum above 0 and a log of +inf: its largest
    score and its sum begin at the smallest numbers, which no other row notices. (Of a choice
    between values instead, XLA:CPU makes more kernels, two to three times as slow.) The sums
    `(B, H, T, 1)` divide what was made of the exponentials: a probability taken from the log
    would carry the rounding of a number as large as the scores.
    """
    inf, limits = scores.dtype.type(np.inf), jnp.finfo(scores.dtype)
    if scores.shape[-1] == 0:
        sums = jnp.ones((*scores.shape[:-1], 1), scores.dtype)
        return scores, sums, jnp.full(scores.shape[:-1], inf, scores.dtype)
    last = (scores.ndim - 1,)
    top = lax.reduce(scores, limits.min, lax.max, last)[..., None]
    parts = lax.exp(scores - top)
    sums = lax.reduce(parts, limits.tiny, lax.add, last)[..., None]
    hidden = sums == limits.tiny
    return parts, sums, jnp.squeeze(jnp.where(hidden, inf, top + lax.log(sums)), -1)


def _probabilities(scores: jax.Array, log_sums: jax.Array) -> jax.Array:
    """exp(scores - log_sums), freed of the rounding of the logarithm.

    A row whose sum differs from 1 by no more than that rounding explains is a whole row, and is
    divided by its sum. Any other is a part of one, whose other keys are elsewhere.
    """
    if scores.dtype == np.float64:  # the saved logarithms are float32
        parts, sums, _ = _exponentials(scores)
        return parts / sums
    logs = log_sums.astype(scores.dtype)[..., None]
    parts = lax.exp(scores - logs)
    sums = jnp.sum(parts, axis=-1, keepdims=True)
    rounding = _ROUNDING * jnp.finfo(scores.dtype).eps * (1 + jnp.abs(logs))
    whole = jnp.isfinite(logs) & (jnp.abs(sums - 1) <= rounding)
    return parts / jnp.where(whole, sums, scores.dtype.type(1))


def _dropout_mask(rng: Rng, shape: tuple[int, ...], p: float, dtype: np.dtype) -> jax.Array:
    """Zero with probability `p`, else ``1 / (1 - p)``."""
    if p >= 1:
        return jnp.zeros(shape, dtype)
    kept = rng.uniform(shape, np.dtype(np.float32)) >= np.float32(p)
    return jnp.where(kept, dtype.type(1 / (1 - p)), dtype.type(0))


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`(B, H, T, E)`, `(B, K, S, E)`, `(B, K, S, V)` -> output, log sums, probabilities.

    K divides H: query heads in a row share a head of keys, and of values. The output
    `(B, H, T, V)` has the dtype of the query, the rest the compute dtype.
    """
    whole, (key, value) = query.shape[:3], _alike(key, value, query.shape[1])
    heads, dtype = key.shape[1], query.dtype
    bias, query = _folded_bias(bias, query, heads), _folded(query, heads)
    scores = _scores(query, key, bias, is_causal, scale, whole[2])
    parts, sums, log_sums = _exponentials(scores)
    if dropout_p > 0 and rng is not None:
        mask = _dropout_mask(rng, (*whole, key.shape[2]), dropout_p, parts.dtype)
        parts = parts * _folded(mask, heads)
    out = _batched(parts.astype(value.dtype), value, 3, 2, parts.dtype) / sums
    results = out.astype(dtype), log_sums, parts / sums
    out, log_sums, weights = (x.reshape(*whole, *x.shape[3:]) for x in results)
    return out, layout.of_all_keys(log_sums), weights


def attend_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    out: jax.Array,
    log_sums: jax.Array,
    *,
    is_causal: bool,
    scale: float | None,
    dropout_p: float = 0.0,
    rng: Rng | None = None,
    bias_gradient: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Gradients for query, key, value and (if asked for) bias."""
    by_scores = False
    if mxu.lowers_for("tpu"):
        # The result would be kept as heads for the sums of its product with the gradient.
        least = padded_heads.least(query, key, value)
        by_scores = layout.is_of_all_keys(log_sums) and padded_heads.are_padded(query, least)
        # The scores are computed again; without the barrier XLA keeps those of the forward pass.
        # A dropout's mask is its choice: it is made of nothing that has to be kept.
        through = query, key, log_sums, grad_out
        query, key, log_sums, grad_out, value = padded_heads.later(through, value, least)
    compute, dtype, whole = dtypes.opmath(query.dtype), query.dtype, query.shape[:3]
    own = key.shape[1], value.shape[1]
    key, value = _alike(key, value, whole[1])
    heads = key.shape[1]
    wide = _folded_bias(bias, query, heads)
    query, grad_out, out, log_sums = (_folded(x, heads) for x in (query, grad_out, out, log_sums))
    scores = _scores(query, key, wide, is_causal, scale, whole[2])
    weights = _probabilities(scores, log_sums)
    d_weights = _batched(grad_out, value, 3, 3, compute)
    dropped = weights
    if dropout_p > 0 and rng is not None:
        mask = _folded(_dropout_mask(rng, (*whole, key.shape[2]), dropout_p, compute), heads)
        d_weights, dropped = d_weights * mask, weights * mask
    d_value = _batched(dropped.astype(value.dtype), grad_out, 2, 2, compute)
    if by_scores:
        along = jnp.sum(weights * d_weights, axis=-1, keepdims=True)
    else:
        along = jnp.sum(grad_out.astype(compute) * out.astype(compute), axis=-1, keepdims=True)
    d_scores = weights * (d_weights - along)
    factor = compute.type(_scale(query, scale))
    narrow = d_scores.astype(dtype)
    d_query = _batched(narrow, key, 3, 2, compute) * factor
    d_key = _batched(narrow, query, 2, 2, compute) * factor
    d_bias = None
    if bias_gradient and bias is not None:
        of_scores = d_scores.reshape(*whole, d_scores.shape[3])
        d_bias = _summed_to(of_scores, bias.shape).astype(bias.dtype)
    return (
        d_query.astype(dtype).reshape(*whole, query.shape[3]),
        flash_attention.summed(d_key, own[0]).astype(key.dtype),
        flash_attention.summed(d_value, own[1]).astype(value.dtype),
        d_bias,
    )


def _summed_to(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`x` summed over the dimensions that a broadcast from `shape` added or stretched."""
    extra = x.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + i for i, n in enumerate(shape) if n == 1 and x.shape[extra + i] != 1
    )
    return jnp.sum(x, axis=axes).reshape(tuple(shape))


def _as_int64(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, np.int64)


def stream(seed: jax.Array, offset: jax.Array) -> Rng:
    """The random numbers of a forward pass, from the seed and offset that it returned."""
    return Rng(*(lax.bitcast_convert_type(word, np.uint64) for word in (seed, offset)))


def fused_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    rng: Rng,
) -> tuple[Any, ...]:
    """The fused overload: also the saved seed and offset, and what only CUDA fills."""
    if flash_attention.applies(query, key, value, attn_bias, dropout_p):
        factor = _scale(query, scale)
        out, log_sums = flash_attention.forward(
            query,
            key,
            value,
            is_causal=is_causal,
            scale=factor,
            statistics=not unread.is_unread(1),
        )
    else:
        out, log_sums, _ = attend(
            query,
            key,
            value,
            attn_bias,
            is_causal=is_causal,
            scale=scale,
            dropout_p=dropout_p,
            rng=rng,
        )
    state = _as_int64(rng.seed), _as_int64(rng.offset)
    return out, log_sums, None, None, query.shape[2], key.shape[2], *state, None


def fused_attention_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: jax.Array | None,
    grad_input_mask: Sequence[bool],
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: jax.Array | None,
    cum_seq_k: jax.Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: jax.Array | Rng,
    philox_offset: jax.Array,
    *,
    scale: float | None = None,
) -> tuple[jax.Array | None, ...]:
    """Gradients for query, key, value and bias: of those given, zeros where the mask has no 1.

    PyTorch's meta kernel states a result for each operand that was given. A rule for padded sizes
    gives its own stream in the place of the seed.
    """
    if flash_attention.applies(query, key, value, attn_bias, dropout_p):
        factor = _scale(query, scale)
        return *flash_attention.backward(
            grad_out, query, key, value, out, logsumexp, is_causal=is_causal, scale=factor
        ), None
    rng = philox_seed if isinstance(philox_seed, Rng) else stream(philox_seed, philox_offset)
    grads = attend_backward(
        grad_out,
        query,
        key,
        value,
        attn_bias,
        out,
        logsumexp,
        is_causal=is_causal,
        scale=scale,
        dropout_p=dropout_p,
        rng=rng,
        bias_gradient=grad_input_mask[3],
    )
    return tuple(
        grad if wanted or operand is None else jnp.zeros_like(operand)
        for grad, operand, wanted in zip(
            grads, (query, key, value, attn_bias), grad_input_mask, strict=True
        )
    )


def flash_attention_for_cpu(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: jax.Array | None = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The overload that graphs traced on CPU hold; it has no dropout."""
    return attend(query, key, value, attn_mask, is_causal=is_causal, scale=scale)[:2]


def flash_attention_for_cpu_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: jax.Array | None = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return attend_backward(
        grad_out,
        query,
        key,
        value,
        attn_mask,
        out,
        logsumexp,
        is_causal=is_causal,
        scale=scale,
    )[:3]


_NAME = "aten::_scaled_dot_product_fused_attention_overrideable"
_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"

TABLE: tuple[Lowering, ...] = (
    native(_NAME, fused_attention, random=True),
    native(f"{_NAME}_backward", fused_attention_backward),
    native(_CPU, flash_attention_for_cpu),
    native(f"{_CPU}_backward", flash_attention_for_cpu_backward),
)
