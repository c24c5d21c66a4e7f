# SPDX-License-Identifier: Apache-2.0
"""Nested tensors of the jagged layout to padded ones and back.

Each is a lookup of rows: a place outside of a sequence takes one more row behind the data,
which holds what goes there. They are made of torch ops, so that sizes may be open in a compiled
graph.

Legend: B sequences, S room of one, N rows of all, R rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtpu_core.lowering.table import Lowering, composite


def _to_padded(
    values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding_value: float = 0
) -> Tensor:
    """`(N, R)` -> `(B, S, R)`; what a sequence has beyond S is left out."""
    bounds, room = _only(offsets), max_lengths[0]
    place = bounds[:-1, None] + torch.arange(room, device=values.device)
    behind = values.new_full((1, *values.shape[1:]), padding_value)
    row = torch.where(place < bounds[1:, None], place, values.shape[0])
    return torch.cat([values, behind])[row]


def _to_jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:
    """`(B, S, R)` -> `(N, R)`; N is read from the device if it is not given.

    Raises:
        RuntimeError: a sequence is longer than S, or the last does not end at N.
    """
    bounds = _only(offsets)
    count, room = dense.shape[:2]
    length = int(bounds[-1]) if total_L is None else total_L
    place = torch.arange(length, dtype=bounds.dtype, device=dense.device)
    batch = torch.searchsorted(bounds[1:].contiguous(), place, right=True)
    column = place - bounds[batch]
    inside = (batch < count) & (column < room)
    behind = dense.new_zeros((1, *dense.shape[2:]))
    row = torch.where(inside, batch * room + column, count * room)
    values = torch.cat([dense.flatten(0, 1), behind])[row]
    return _checked(values, bounds, room, length)


def _checked(values: Tensor, bounds: Tensor, room: int, length: int) -> Tensor:
    require, name = torch.ops.aten._functional_assert_async.msg, "_padded_dense_to_jagged_forward()"
    longest = (bounds[1:] - bounds[:-1] <= room).all()
    message = f"{name}: found batch item of length above the max length of the padded input"
    values = require(longest, message, values)
    ends = bounds[-1] == length
    return require(ends, f"{name}: final offset should match total_L value", values)


def _only(offsets: Sequence[Tensor]) -> Tensor:
    if len(offsets) != 1:
        raise RuntimeError("only a single jagged dim is supported for now")
    return offsets[0]


TABLE: tuple[Lowering, ...] = (
    composite("aten::_jagged_to_padded_dense_forward", _to_padded),
    composite("aten::_padded_dense_to_jagged_forward", _to_jagged),
)
