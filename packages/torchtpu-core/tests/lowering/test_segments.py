# SPDX-License-Identifier: Apache-2.0
"""Segment reductions, forward and backward, against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.lowering import segments
from torchtpu_core.testing.lowering import check, lower

TABLE = segments.TABLE
NAN = float("nan")
DATA = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "amax", "amin"]
FORWARD, BACKWARD = "aten::segment_reduce", "aten::_segment_reduce_backward"


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("initial", [None, 1.5])
def test_segment_reduce_with_empty_segments_equals_cpu(reduce: str, initial: float | None) -> None:
    lengths = torch.tensor([2, 0, 3, 1, 0])
    check(FORWARD, DATA, reduce, table=TABLE, lengths=lengths, initial=initial)
    offsets = torch.tensor([0, 2, 2, 5, 6, 6])
    check(FORWARD, DATA, reduce, table=TABLE, offsets=offsets, initial=initial)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segment_reduce_of_a_batch_equals_cpu(reduce: str) -> None:
    lengths = torch.tensor([[2, 1], [0, 3]])
    check(FORWARD, DATA.reshape(2, 3, 3), reduce, table=TABLE, lengths=lengths, axis=1)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segment_reduce_propagates_nan(reduce: str) -> None:
    data = torch.tensor([1.0, NAN, 2.0, 3.0])
    check(FORWARD, data, reduce, table=TABLE, lengths=torch.tensor([2, 2]))


def test_segment_reduce_with_lengths_of_another_sum_raises() -> None:
    row = next(r for r in TABLE if r.overload == FORWARD)
    with pytest.raises(RuntimeError, match="sum to"):
        lower(row, (DATA, "sum"), {"lengths": torch.tensor([2, 1])})


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize(
    "data",
    [
        torch.tensor([1.0, 3.0, 3.0, -2.0, 5.0, 0.5]),
        torch.tensor([0.0, 3.0, 3.0, 0.0, 0.0, 0.5]),
        torch.tensor([NAN, 3.0, 0.0, NAN, 5.0, 0.5]),
    ],
    ids=["ties", "zeros", "nan"],
)
def test_segment_reduce_backward_equals_cpu(reduce: str, data: torch.Tensor) -> None:
    lengths, grad = torch.tensor([3, 0, 2, 1]), torch.tensor([0.5, 1.0, -2.0, 3.0])
    output = torch.segment_reduce(data, reduce, lengths=lengths)
    check(BACKWARD, grad, output, data, reduce, table=TABLE, lengths=lengths)
