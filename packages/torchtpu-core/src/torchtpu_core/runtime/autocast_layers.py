# SPDX-License-Identifier: Apache-2.0
"""The fast paths of attention modules and encoder layers under ``torch.autocast("tpu")``.

In eval mode PyTorch runs ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` as one
operator unless autocast is on, but asks that of CUDA alone. Under the device's own autocast the
operator is taken apart here, as CUDA's layers are, so that autocast casts the parts one by one:
products run in the autocast dtype, norms and softmaxes in float32, and a floating-point mask is
added.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from torchtpu_core.lowering import encoder_layers

_library = torch.library.Library("aten", "IMPL")
#: Places of the masks among the arguments after the first.
_ATTENTION_MASK, _LAYER_MASK = 8, 17


@functools.cache
def register() -> None:
    """Take the operators apart under the device's autocast."""
    _library.impl("_native_multi_head_attention", _attention, "AutocastPrivateUse1")
    _library.impl("_transformer_encoder_layer_fwd", _encoder_layer, "AutocastPrivateUse1")


def _attention(query: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    if query.is_nested:  # only as its own keys and values, and without a mask
        padded, hidden = _padded(query)
        options |= {"mask": hidden, "mask_type": 1}
        given = rest[2:_ATTENTION_MASK], rest[_ATTENTION_MASK + 1 : _ATTENTION_MASK + 3]
        options |= dict(zip(("need_weights", "average_attn_weights"), given[1], strict=False))
        out, weights = encoder_layers.attention(padded, padded, padded, *given[0], **options)
        return _nested(out, hidden), weights
    return encoder_layers.attention(query, *rest, **options, added=True)


def _encoder_layer(src: Tensor, *rest: Any, **options: Any) -> Tensor:
    if src.is_nested:
        padded, hidden = _padded(src)
        weights = rest[:_LAYER_MASK]
        options = {"mask": hidden, "mask_type": 1}
        out = encoder_layers.encoder_layer(padded, *weights, **options)
        return _nested(out, hidden)
    return encoder_layers.encoder_layer(src, *rest, **options, added=True)


def _padded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Nested rows as `(B, T, D)` with zeros behind them, and where these are, `(B, T)`."""
    padded = torch.nested.to_padded_tensor(rows, 0.0)
    lengths = rows._nested_tensor_size()[:, 0]
    hidden = torch.arange(padded.shape[1]) >= lengths[:, None]
    return padded, hidden.to(rows.device)


def _nested(padded: Tensor, hidden: Tensor) -> Tensor:
    return torch._nested_tensor_from_mask(padded, ~hidden, mask_check=False)
