# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sparse tensors where the user asks for it with ``sparse=True``.

The recorder makes dense results only: it calls these instead of recording the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _embedding_bag(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    _maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    _sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """`(B, D)` -> COO `(V, D)` of the rows that were looked up, repeated ones more than once."""
    return torch.ops.aten._embedding_bag_sparse_backward(
        grad,
        indices,
        offsets,
        offset2bag,
        bag_size,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


#: By the overload, which has an argument ``sparse``.
MAKERS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten::_embedding_bag_backward": _embedding_bag,
}


def make(overload: str, *args: Any) -> torch.Tensor:
    """The result of an overload of `MAKERS` whose ``sparse`` is true."""
    return MAKERS[overload](*args)
