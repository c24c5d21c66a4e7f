# SPDX-License-Identifier: Apache-2.0
"""The inference fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``.

PyTorch calls these composite kernels in eval mode on any PrivateUse1 device. A mask is
boolean, True hides; mask types are PyTorch's numbers: 0 `(T, T)`, 1 `(B, T)`, 2 `(B, H, T, T)`.

Legend: B batch, T tokens, D embedding, H heads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.attention import attend
from torchtpu_core.lowering.matmul import linear
from torchtpu_core.lowering.normalization import native_layer_norm
from torchtpu_core.lowering.table import Lowering, native


def _heads(x: jax.Array, heads: int) -> jax.Array:
    """`(B, T, D)` -> `(B, H, T, D/H)`."""
    batch, tokens, width = x.shape
    return jnp.swapaxes(x.reshape((batch, tokens, heads, width // heads)), 1, 2)


def transform_bias_rescale_qkv(
    qkv: jax.Array, qkv_bias: jax.Array, num_heads: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`(B, T, 3D)`, `(3D,)` -> query (scaled), key and value `(B, H, T, D/H)`."""
    compute = dtypes.opmath(qkv.dtype)
    biased = qkv.astype(compute) + qkv_bias.astype(compute)
    q, k, v = (_heads(part, num_heads) for part in jnp.split(biased, 3, axis=-1))
    q = q * compute.type(1 / np.sqrt(q.shape[-1]))
    return q.astype(qkv.dtype), k.astype(qkv.dtype), v.astype(qkv.dtype)


def _visible(mask: jax.Array | None, mask_type: int | None) -> jax.Array | None:
    """The mask as `(B or 1, H or 1, T or 1, T)`, True where a query may look."""
    if mask is None:
        return None
    hidden = mask.astype(np.bool_)
    if mask_type == 0:
        hidden = hidden[None, None]
    elif mask_type == 1:
        hidden = hidden[:, None, None, :]
    return ~hidden


def native_multi_head_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    mask: jax.Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """`(B, T, D)` three times -> output `(B, T, D)` and the weights `(B, [H,] T, T)` or None."""
    parts = zip((query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3), strict=True)
    q, k, v = (_heads(linear(x, weight, bias), num_head) for x, weight, bias in parts)
    out, _, weights = attend(q, k, v, _visible(mask, mask_type))
    joined = jnp.swapaxes(out, 1, 2).reshape((*query.shape[:2], embed_dim))
    projected = linear(joined, proj_weight, proj_bias)
    if not need_weights:
        return projected, None
    if average_attn_weights:
        weights = jnp.mean(weights, axis=1)
    return projected, weights.astype(query.dtype)


def _gelu_or_relu(x: jax.Array, use_gelu: bool) -> jax.Array:
    if not use_gelu:
        return jnp.maximum(x, jnp.zeros((), x.dtype))
    wide = x.astype(dtypes.opmath(x.dtype))
    half, root = wide.dtype.type(0.5), wide.dtype.type(np.sqrt(0.5))
    return (half * wide * (wide.dtype.type(1) + lax.erf(wide * root))).astype(x.dtype)


def transformer_encoder_layer_fwd(
    src: jax.Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: jax.Array,
    norm_bias_1: jax.Array,
    norm_weight_2: jax.Array,
    norm_bias_2: jax.Array,
    ffn_weight_1: jax.Array,
    ffn_bias_1: jax.Array,
    ffn_weight_2: jax.Array,
    ffn_bias_2: jax.Array,
    mask: jax.Array | None = None,
    mask_type: int | None = None,
) -> jax.Array:
    """`(B, T, D)` -> the same: attention and feed-forward, each with a residual and a norm."""
    width = src.shape[-1:]

    def norm_1(x: jax.Array) -> jax.Array:
        return native_layer_norm(x, width, norm_weight_1, norm_bias_1, eps)[0]

    def norm_2(x: jax.Array) -> jax.Array:
        return native_layer_norm(x, width, norm_weight_2, norm_bias_2, eps)[0]

    def attention(x: jax.Array) -> jax.Array:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type
        )[0]

    def feed_forward(x: jax.Array) -> jax.Array:
        hidden = _gelu_or_relu(linear(x, ffn_weight_1, ffn_bias_1), use_gelu)
        return linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))


TABLE: tuple[Lowering, ...] = (
    native("aten::_transform_bias_rescale_qkv", transform_bias_rescale_qkv),
    native("aten::_native_multi_head_attention", native_multi_head_attention),
    native("aten::_transformer_encoder_layer_fwd", transformer_encoder_layer_fwd),
)
