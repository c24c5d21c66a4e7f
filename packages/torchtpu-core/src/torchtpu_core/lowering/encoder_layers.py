# SPDX-License-Identifier: Apache-2.0
"""The inference fast paths of attention modules and encoder layers, from ordinary operators.

PyTorch calls one fused operator for ``nn.MultiheadAttention`` and for
``nn.TransformerEncoderLayer`` in eval mode. At fixed sizes their rows are lowered; in a graph
with open sizes they are taken apart into operators that have rules for padding, and so they are
under autocast (`runtime.autocast_layers`). A mask is boolean, True hides, or, under autocast, may
be added to the scores; mask types are PyTorch's: 0 `(T, T)`, 1 `(B, T)`, 2 `(B, H, T, T)`.

Legend: B batch, T tokens, D embedding, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _scores_mask(mask: Tensor | None, mask_type: int | None, added: bool) -> Tensor | None:
    """The mask as one that four-dimensional scores take: True where a query may look, or added."""
    if mask is None:
        return None
    mask = mask[:, None, None, :] if mask_type == 1 else mask
    return mask if added and mask.is_floating_point() else ~mask.to(torch.bool)


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    return scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
    *,
    added: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`(B, T, D)` three times -> output `(B, T, D)` and the weights `(B, [H,] T, T)` or None.

    With ``added`` a mask of floating-point numbers is added to the scores.
    """
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, weight, bias in parts
    )
    visible, weights = _scores_mask(mask, mask_type, added), None
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        weights = _masked(scores, visible).softmax(-1)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return F.linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
    *,
    whole_scores: bool = False,
    added: bool = False,
) -> Tensor:
    """`(B, T, D)` -> the same: attention and feed-forward, each with a residual and a norm.

    With ``whole_scores`` all scores are written, as the row of `lowering.transformer` does; with
    ``added`` a mask of floating-point numbers is added to them.
    """
    width = src.shape[-1:]
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    activation = F.gelu if use_gelu else F.relu

    def attended(x: Tensor) -> Tensor:
        rest = mask, whole_scores, False, mask_type
        return attention(x, x, x, embed_dim, num_heads, *weights, *rest, added=added)[0]

    def fed_forward(x: Tensor) -> Tensor:
        return F.linear(activation(F.linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, width, norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, width, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(norm_1(src))
        return x + fed_forward(norm_2(x))
    x = norm_1(src + attended(src))
    return norm_2(x + fed_forward(x))


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
