# SPDX-License-Identifier: Apache-2.0
"""torch.accelerator, the device-neutral API, serves the device."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.errors import DeviceIndexError


def test_current_accelerator_is_tpu():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.device_count() == torch.tpu.device_count()


def test_set_device_index_agrees_with_torch_tpu():
    torch.accelerator.set_device_index(2)
    assert torch.tpu.current_device() == 2
    assert torch.accelerator.current_device_index() == 2


def test_device_index_context_restores():
    with torch.accelerator.device_index(3):
        assert torch.tpu.current_device() == 3
    assert torch.tpu.current_device() == 0


def test_streams_are_shared_with_torch_tpu():
    stream = torch.Stream(device="tpu")
    previous = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    assert torch.tpu.current_stream() == stream
    torch.accelerator.set_stream(previous)


def test_synchronize_waits_for_the_device():
    x = torch.ones(4, device="tpu") + 1
    torch.accelerator.synchronize()
    event = torch.Event(device="tpu")
    event.record()
    assert event.query()
    assert x.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    "function",
    [torch.accelerator.synchronize, torch.accelerator.current_stream, torch.tpu.synchronize],
)
def test_device_that_does_not_exist_is_refused(function):
    with pytest.raises(DeviceIndexError, match="tpu:99 does not exist: this process sees 4"):
        function(99)


def test_capability_lists_dtypes_that_work():
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool} <= supported
    for dtype in supported:
        assert torch.zeros(2, dtype=dtype, device="tpu").cpu().dtype == dtype


def test_memory_functions_read_the_device():
    before = torch.accelerator.memory_allocated()
    kept = torch.ones(1024, device="tpu") * 2
    assert torch.accelerator.memory_allocated() >= before + kept.nbytes
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] > before
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()


def test_empty_host_cache_keeps_pinned_memory():
    pinned = torch.arange(4.0).pin_memory()
    torch.accelerator.empty_host_cache()
    assert pinned.is_pinned()
    assert pinned.to("tpu", non_blocking=True).tolist() == [0.0, 1.0, 2.0, 3.0]
