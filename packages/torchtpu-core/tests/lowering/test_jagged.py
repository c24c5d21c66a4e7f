# SPDX-License-Identifier: Apache-2.0
"""Jagged rows to padded ones and back, on the device, against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

VALUES, OFFSETS = torch.randn(6, 2, 3), torch.tensor([0, 2, 2, 6])
to_padded = torch.ops.aten._jagged_to_padded_dense_forward
to_jagged = torch.ops.aten._padded_dense_to_jagged_forward


def both(values: Tensor, offsets: Tensor, room: int) -> list[Tensor]:
    """Padded rows, and where nothing was cut off the rows again."""
    padded = to_padded(values, [offsets], [room], 1.5)
    if room < 4:
        return [padded]
    return [padded, *(to_jagged(padded, [offsets], n) for n in (len(values), None))]


@pytest.mark.parametrize("room", [3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("offsets", [OFFSETS, OFFSETS.int()], ids=["int64", "int32"])
def test_jagged_rows_padded_and_back_equal_cpu(
    offsets: Tensor, dtype: torch.dtype, room: int
) -> None:
    values = (VALUES * 9).to(dtype)
    before = dict(torch.tpu.counters()["fallbacks"])
    actual = both(values.to("tpu"), offsets.to("tpu"), room)
    assert torch.tpu.counters()["fallbacks"] == before
    for one, expected in zip(actual, both(values, offsets, room), strict=True):
        assert torch.equal(one.cpu(), expected)


def test_padded_rows_of_other_lengths_raise_what_cpu_raises() -> None:
    padded, offsets = torch.ones(3, 3), OFFSETS.clamp(max=5)
    for offset, length in ((OFFSETS, 6), (offsets, 7)):
        with pytest.raises(RuntimeError) as refused:
            to_jagged(padded, [offset], length)
        words = str(refused.value).partition(" of length")[0]
        with pytest.raises(RuntimeError, match=words.replace("()", r"\(\)")):
            to_jagged(padded.to("tpu"), [offset.to("tpu")], length).cpu()
