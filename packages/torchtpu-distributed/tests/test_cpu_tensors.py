# SPDX-License-Identifier: Apache-2.0
"""What is remembered of collectives of CPU tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchtpu_distributed import cpu_tensors
from torchtpu_distributed.cpu_tensors import CpuTensors


def test_objects_of_ever_new_sizes_take_no_more_memory(monkeypatch) -> None:
    monkeypatch.setattr(cpu_tensors, "MOST_KNOWN", 4)
    group: Any = SimpleNamespace(come=lambda call, line, timeout_s: call, is_nearby=False)
    known = CpuTensors(group)

    def begin(size: int) -> Any:
        return known.begin("all_gather", "", -1, [torch.empty(size)], None, None)

    assert begin(1) is begin(1)
    for size in range(20):
        assert f"float32[{size}]" in begin(size).what
        assert len(known._known) <= 4


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("premul_sum", torch.float32),
        ("avg", torch.int64),
        ("bxor", torch.float32),
        ("sum", torch.int16),
    ],
)
def test_reduction_that_gloo_has_not_is_refused_before_other_ranks_are_told(op, dtype) -> None:
    group: Any = SimpleNamespace()  # no rank can come to anything
    with pytest.raises(RuntimeError, match=f"Cannot use ReduceOp.{op.upper()} with"):
        CpuTensors(group).begin("all_reduce", op, -1, [torch.ones(2, dtype=dtype)], None, None)
