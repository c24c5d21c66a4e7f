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
    group: Any = SimpleNamespace(
        come=lambda call, line, timeout_s: call, is_nearby=False, size=2, name="0"
    )
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


def test_root_that_is_not_in_the_group_is_refused_before_other_ranks_are_told() -> None:
    group: Any = SimpleNamespace(size=2, name="0")
    with pytest.raises(
        RuntimeError, match="invalid root rank 2: the ranks of group '0' are 0 to 1"
    ):
        CpuTensors(group).begin("broadcast", "", 2, [torch.ones(2)], None, None)


def test_ranks_that_are_refused_one_after_the_other_go_on(pair) -> None:
    for refused, total in pair("refused_roots.reduce_after_refusal"):
        assert "invalid root rank 7" in refused
        assert total == 3
