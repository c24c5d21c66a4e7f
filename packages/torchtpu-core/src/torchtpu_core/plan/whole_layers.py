# SPDX-License-Identifier: Apache-2.0
"""Operators that are whole layers, taken apart into what a plan can price.

In eval mode PyTorch calls one operator for an ``nn.TransformerEncoderLayer``, and one for an
``nn.MultiheadAttention``. A device runs it as one; its products, and what they leave in HBM, are
those of its parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtpu_core.lowering import encoder_layers

_aten = torch.ops.aten
PARTS: Mapping[Any, Callable[..., Any]] = {
    _aten._native_multi_head_attention.default: encoder_layers.DECOMPOSITIONS[
        _aten._native_multi_head_attention.default
    ],
    _aten._transformer_encoder_layer_fwd.default: functools.partial(
        encoder_layers.encoder_layer, whole_scores=True
    ),
}
