# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: padding their rows is one gather, however many steps there are.

PyTorch copies a slice for each step (the gradient of packing) or for each length (padding), so
that the operators of a training step follow its lengths. The rows of a packed sequence are known
on the host. Packing itself is `lowering/shape.py`.

Legend: T steps, B batch, N rows; rows of step t follow those of step t - 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

_KEYS = ("AutogradPrivateUse1", "PrivateUse1")
_library = torch.library.Library("aten", "IMPL")


@functools.cache
def register() -> None:
    """Serve them on the device."""
    for key in _KEYS:
        _library.impl("_pad_packed_sequence", pad, key)
        _library.impl("_pack_padded_sequence_backward", pack_backward, key)


def pad(
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[Tensor, Tensor]:
    """`(N, ...)` -> `(T, B, ...)`, or `(B, T, ...)`; and the sequences' lengths `(B,)`.

    Args:
        data: the rows.
        batch_sizes: `(T,)` on the host, how many sequences have a step.
        batch_first: batch before steps.
        padding_value: where a sequence has no step.
        total_length: steps of the result; 0 or less: as many as there are.
    """
    counts = batch_sizes.cpu()
    steps = len(counts)
    if 0 < total_length < steps:
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total_length} and max sequence length being {steps}"
        )
    valid = torch.arange(int(counts[0])) < counts[:, None]
    padded = _padded(data, valid, max(total_length, steps), padding_value)
    return padded.transpose(0, 1) if batch_first else padded, valid.sum(0)


def pack_backward(
    grad: Tensor, input_size: Sequence[int], batch_sizes: Tensor, batch_first: bool
) -> Tensor:
    """Gradient of packing, `(N, ...)`, for an input of `input_size`."""
    batch, steps = input_size[:2] if batch_first else (input_size[1], input_size[0])
    valid = torch.arange(batch) < batch_sizes.cpu()[:, None]
    padded = _padded(grad, valid, steps, 0)
    return padded.transpose(0, 1) if batch_first else padded


def _padded(rows: Tensor, valid: Tensor, steps: int, fill: float) -> Tensor:
    """`(N, ...)` -> `(steps, B, ...)`, where `valid` `(T, B)` says which steps have rows."""
    more = valid.new_zeros((steps - len(valid), valid.shape[1]))
    places = torch.cat([valid, more]).flatten()
    row = (places.cumsum(0) - 1).clamp_(min=0).to(rows.device)
    absent = places.logical_not_().view(-1, *[1] * (rows.dim() - 1)).to(rows.device)
    padded = rows.index_select(0, row).masked_fill(absent, fill)
    return padded.view(steps, -1, *rows.shape[1:])
