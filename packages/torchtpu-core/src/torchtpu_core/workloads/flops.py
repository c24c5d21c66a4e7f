# SPDX-License-Identifier: Apache-2.0
"""Model operations of a transformer, as publications count them.

Six per parameter that a token meets, embedding look-ups left out, and the products of
attention. Recomputation, padding and dropped tokens do not count.

Reference: Chowdhery et al., PaLM (2022), appendix B, defines model FLOPs utilisation.
"""

from __future__ import annotations

from torchtpu_core.workloads.layers import Layer, layers_of
from torchtpu_core.workloads.published import Attention
from torchtpu_core.workloads.spec import Model


def flops_per_token(model: Model, sequence: int, attention: str = "causal") -> float:
    """Operations of forward and backward pass for one token.

    Args:
        model: the transformer.
        sequence: tokens of a sequence.
        attention: causal counts the pairs that a token attends to, full all pairs, none
            leaves attention out.
    """
    total = 6.0 * model.vocab * model.emb
    for layer in layers_of(model):
        total += layer.count * 6.0 * _active(model, layer)
        if attention != Attention.NONE:
            total += layer.count * _attention(layer, sequence, attention)
    return total


def _active(model: Model, layer: Layer) -> float:
    """Parameters that a token meets, with no room for dropped tokens."""
    room = max(1.0, model.experts.capacity_factor) if model.experts else 1.0
    return sum(
        matrix.k * matrix.n * (matrix.uses / room if matrix.copies > 1 else matrix.uses)
        for matrix in layer.matrices
    )


def _attention(layer: Layer, sequence: int, attention: str) -> float:
    """Three times the two products of the forward pass."""
    width = layer.heads * (layer.head_dim + layer.value_dim)
    pairs = sequence / (2 if attention == Attention.CAUSAL else 1)
    if layer.window and layer.window < sequence:
        pairs = min(layer.window, pairs)
    return 6.0 * width * pairs
