# SPDX-License-Identifier: Apache-2.0
"""Attention under `torch.vmap`: the samples of a map are more sequences of the batch.

PyTorch's composed math serves what is mapped and nothing else. Where a gradient is taken
inside a map (`vmap(grad(loss))`, per-sample gradients), the choice of a kernel sees the
gradient's tensors only, and takes the fused operators, which have their rules here.

Shape letters: ``M`` samples of the map, ``B`` batch, ``H`` heads, ``L`` queries, ``S``
keys, ``E`` width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_NAME = "aten::_scaled_dot_product_fused_attention_overrideable"
#: Results of the forward operator that belong to a sample: the output and its logsumexp.
_FORWARD_DIMS = (0, 0, *(None,) * 7)


def register(library: torch.library.Library) -> None:
    """Register the rules of the forward and the backward operator in `library`, of aten."""
    torch.library.register_vmap(_NAME, _forward, lib=library)
    torch.library.register_vmap(f"{_NAME}_backward", _backward, lib=library)


def _forward(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    _require_draws(info, args[4] if len(args) > 4 else 0.0)
    values = _all_joined(args, in_dims, info.batch_size, (0, 1, 2), bias=3)
    out, logsumexp, *rest = _operator("")(*values, **kwargs)
    parts = [_apart(value, info.batch_size) for value in (out, logsumexp)]
    return (*parts, *rest), _FORWARD_DIMS


def _backward(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    # (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, ...)
    values = _all_joined(args, in_dims, info.batch_size, (1, 0, 2, 3, 6, 7), bias=4)
    *slopes, of_bias = _operator("_backward")(*values, **kwargs)
    parts = [None if value is None else _apart(value, info.batch_size) for value in slopes]
    if isinstance(of_bias, Tensor):
        own = _own_shape(args[4], in_dims[4])
        of_bias = _apart(of_bias, info.batch_size)
        if math.prod(own[:-3]) == 1:  # one bias for all sequences of a sample
            of_bias = of_bias.sum(1)
        of_bias = of_bias.reshape(info.batch_size, *own)
    results = (*parts, of_bias)
    return results, tuple(None if value is None else 0 for value in results)


def _operator(suffix: str) -> Any:
    return getattr(torch.ops.aten, _NAME.removeprefix("aten::") + suffix).default


def _all_joined(
    args: Sequence[Any], in_dims: Sequence[Any], samples: int, places: Sequence[int], bias: int
) -> list[Any]:
    """The arguments with samples joined to the batch; the first of `places` tells its size."""
    values = list(args)
    for i in places:
        values[i] = _joined(args[i], in_dims[i], samples)
    if len(args) > bias and isinstance(args[bias], Tensor):
        own = _own_shape(args[bias], in_dims[bias])
        each = values[places[0]].shape[0] // samples
        mapped = args[bias] if in_dims[bias] is None else args[bias].movedim(in_dims[bias], 0)
        lead = 1 if in_dims[bias] is None else samples
        mapped = mapped.reshape(lead, *[1] * (4 - len(own)), *own)
        values[bias] = mapped.expand(samples, each, *mapped.shape[2:]).flatten(0, 1)
    return values


def _own_shape(value: Tensor, at: int | None) -> list[int]:
    """The sizes of one sample."""
    return [n for i, n in enumerate(value.shape) if i != at]


def _joined(value: Tensor, at: int | None, samples: int) -> Tensor:
    """`([M,] B, H, L, E)` -> `(M * B, H, L, E)`."""
    value = value.expand(samples, *value.shape) if at is None else value.movedim(at, 0)
    return value.flatten(0, 1)


def _apart(value: Tensor, samples: int) -> Tensor:
    """`(M * B, ...)` -> `(M, B, ...)`."""
    return value.unflatten(0, (samples, value.shape[0] // samples))


def _require_draws(info: Any, dropout_p: float) -> None:
    """Refuse dropout that is not drawn for each sample."""
    if dropout_p == 0 or math.isnan(dropout_p) or info.randomness == "different":
        return
    if info.randomness == "error":
        raise RuntimeError(
            "vmap: called random operation while in randomness error mode. Please either use the "
            "'same' or 'different' randomness flags on vmap or perform the randomness operation "
            "out of vmap"
        )
    raise NotImplementedError(
        "vmap(..., randomness='same'): fused attention on tpu draws its dropout for each sample. "
        "Use randomness='different', or call it within "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)."
    )
