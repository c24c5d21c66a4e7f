# SPDX-License-Identifier: Apache-2.0
"""Public functions of `torch.cuda`: each is in `torch.tpu` or says what to use instead."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.tpu.absent import ABSENT

#: Names that say nothing without CUDA: its errors, its build, its own kinds of memory and cores.
CUDAS_OWN = {
    *("CudaError", "DeferredCudaCallError", "GreenContext", "check_error", "cudaStatus"),
    *("get_arch_list", "get_gencode_flags", "has_half", "has_magma"),
    *("host_memory_stats", "host_memory_stats_as_nested_dict"),
    *("reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats"),
    *("ComplexDoubleStorage", "ComplexFloatStorage"),
}


def test_every_public_name_of_cuda_is_answered():
    unanswered = {
        name
        for name in torch.cuda.__all__
        if not name.startswith("_")
        and not hasattr(torch.tpu, name)
        and name not in ABSENT
        and name not in CUDAS_OWN
    }
    assert unanswered == set()


@pytest.mark.parametrize("name", ["CUDAGraph", "memory_snapshot", "FloatTensor", "utilization"])
def test_absent_name_says_what_to_use(name):
    assert not hasattr(torch.tpu, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*(torch|XLA)"):
        getattr(torch.tpu, name)


def test_absent_names_do_not_hide_present_ones():
    assert [name for name in ABSENT if hasattr(torch.tpu, name)] == []


def test_priority_range_of_streams_is_one_value():
    assert torch.tpu.Stream.priority_range() == (0, 0)
    assert torch.tpu.is_current_stream_capturing() is False
