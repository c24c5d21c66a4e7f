# SPDX-License-Identifier: Apache-2.0
"""Sizes of results that torch does not state for tensors without values.

PyTorch has no meta kernel of the fused GRU cell, which ``nn.GRUCell`` calls on any device but
the CPU: a compiled one fails as soon as its batch has an open size.

Legend: B batch, H hidden features.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, hidden = hx.shape
    return hx.new_empty((batch, hidden)), hx.new_empty((batch, 5 * hidden))


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    batch, hidden = grad_hy.shape
    shapes = ((batch, 3 * hidden), (batch, 3 * hidden), (batch, hidden))
    bias = 3 * hidden if has_bias else 0
    return tuple(grad_hy.new_empty(s) for s in (*shapes, (bias,), (bias,)))


_KERNELS = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}


@functools.cache
def register() -> torch.library.Library:
    """Register each kernel, unless torch has one."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in _KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, function, "Meta")
    return library
