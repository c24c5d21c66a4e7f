# SPDX-License-Identifier: Apache-2.0
"""Streams order work, events read simulated time, and that time obeys the roofline."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.runtime.current import target


def test_stream_context_restores():
    stream = torch.tpu.Stream()
    before = torch.tpu.current_stream()
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream() == stream
    assert torch.tpu.current_stream() == before == torch.tpu.default_stream()


def test_stream_as_context_manager_of_torch():
    with torch.Stream(device="tpu") as stream:
        assert torch.tpu.current_stream() == stream
    assert torch.tpu.current_stream() == torch.tpu.default_stream()


def test_stream_of_another_device_does_not_change_the_current_device():
    stream = torch.tpu.Stream(1)
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream(1) == stream
    assert torch.tpu.current_device() == 0


def test_streams_differ():
    assert torch.tpu.Stream() != torch.tpu.Stream()


def test_work_on_two_streams_keeps_its_order():
    x = torch.zeros(4, device="tpu")
    side = torch.tpu.Stream()
    with torch.tpu.stream(side):
        x.add_(1)
    torch.tpu.current_stream().wait_stream(side)
    x.mul_(3)
    assert x.tolist() == [3.0] * 4


def test_stream_is_torchs_stream():
    stream = torch.tpu.Stream()
    assert isinstance(stream, torch.Stream)
    assert isinstance(stream, torch.tpu.Stream)
    assert isinstance(torch.tpu.current_stream(), torch.tpu.Stream)
    assert not isinstance("stream", torch.tpu.Stream)


def test_a_stream_is_made_from_the_number_of_one():
    stream = torch.tpu.Stream()
    same = torch.tpu.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert same == stream


def test_a_stream_of_the_current_device():
    torch.tpu.set_device(1)
    try:
        assert torch.tpu.Stream().device_index == 1
    finally:
        torch.tpu.set_device(0)


def test_event_is_torchs_event():
    event = torch.tpu.Event(enable_timing=True)
    assert isinstance(event, torch.Event)
    assert isinstance(event, torch.tpu.Event)
    assert not isinstance("event", torch.tpu.Event)


def test_event_is_done_after_synchronize():
    event = torch.tpu.Event()
    torch.ones(4, device="tpu").add_(1)
    event.record()
    event.synchronize()
    assert event.query()


def test_elapsed_time_without_timing_is_refused():
    first, last = torch.tpu.Event(), torch.tpu.Event()
    first.record()
    last.record()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        first.elapsed_time(last)


def _elapsed_s(work):
    """Simulated seconds of `work`, measured on its second call."""
    work()
    first = torch.tpu.Event(enable_timing=True)
    last = torch.tpu.Event(enable_timing=True)
    first.record()
    work()
    last.record()
    torch.tpu.synchronize()
    return first.elapsed_time(last) * 1e-3


def test_matmul_time_is_bounded_by_the_roofline():
    n = 512
    a = torch.ones(n, n, dtype=torch.bfloat16, device="tpu")
    chip = target().chip
    compute_s = 2 * n**3 / chip.figure("peak_bf16_flops_per_s")
    memory_s = 3 * n * n * 2 / chip.figure("hbm_bytes_per_s")
    elapsed = _elapsed_s(lambda: a @ a)
    assert max(compute_s, memory_s) <= elapsed
    # a single small program: within a launch overhead of tens of microseconds
    assert elapsed < 10 * (compute_s + memory_s) + 1e-4


def test_elementwise_time_is_bounded_by_hbm_bandwidth():
    x = torch.ones(256, 1024, device="tpu")
    least = 2 * x.nbytes / target().chip.figure("hbm_bytes_per_s")
    elapsed = _elapsed_s(lambda: x + 1)
    assert least <= elapsed < 10 * least + 1e-4


def test_larger_matmul_takes_longer():
    small = torch.ones(128, 128, dtype=torch.bfloat16, device="tpu")
    large = torch.ones(1024, 1024, dtype=torch.bfloat16, device="tpu")
    assert _elapsed_s(lambda: large @ large) > _elapsed_s(lambda: small @ small)


def test_independent_streams_overlap_and_waiting_joins_them():
    a = torch.ones(512, 512, dtype=torch.bfloat16, device="tpu")
    one = _elapsed_s(lambda: a @ a)
    side = torch.tpu.Stream()
    side.wait_stream(torch.tpu.current_stream())
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    start.record()
    a @ a
    with torch.tpu.stream(side):
        a @ a
    torch.tpu.current_stream().wait_stream(side)
    end.record()
    torch.tpu.synchronize()
    assert start.elapsed_time(end) * 1e-3 == pytest.approx(one, rel=1e-6)


def test_wait_event_moves_a_stream_forward():
    a = torch.ones(512, 512, dtype=torch.bfloat16, device="tpu")
    side = torch.tpu.Stream()
    start, done, after = (torch.tpu.Event(enable_timing=True) for _ in range(3))
    start.record()
    a @ a
    done.record()
    side.wait_event(done)
    after.record(side)
    torch.tpu.synchronize()
    assert start.elapsed_time(after) == pytest.approx(start.elapsed_time(done))


def test_record_stream_is_accepted():
    x = torch.ones(4, device="tpu")
    x.record_stream(torch.tpu.Stream())
    assert x.tolist() == [1.0] * 4


def test_elapsed_time_of_two_events_in_a_row_is_positive():
    stream = torch.Stream(device="tpu:1")
    first, second = (torch.Event(device="tpu:1", enable_timing=True) for _ in range(2))
    first.record(stream)
    second.record(stream)
    assert 0 < first.elapsed_time(second) < 1e-6


def test_work_issued_after_a_wait_starts_after_what_was_waited_for():
    a = torch.ones(512, 512, dtype=torch.bfloat16, device="tpu")
    side = torch.tpu.Stream()
    first, second = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    a @ a
    first.record()
    first.synchronize()
    second.record(side)
    assert first.elapsed_time(second) > 0


def test_event_of_another_device_is_waited_for_there():
    event = torch.Stream(device="tpu:1").record_event()
    with torch.tpu.device(0):
        event.synchronize()
        assert event.query()
    assert event.device == torch.device("tpu:1")


def test_sleep_occupies_the_stream_for_cycles_of_the_chips_clock():
    begin, middle, end = (torch.tpu.Event(enable_timing=True) for _ in range(3))
    x = torch.ones(4, device="tpu")
    begin.record()
    x.add_(1)
    middle.record()
    torch.tpu._sleep(3_000_000)
    end.record()
    work_ms, all_ms = begin.elapsed_time(middle), begin.elapsed_time(end)
    assert target().chip.clock_hz.value == 1.5e9  # v5e
    assert all_ms - work_ms == pytest.approx(2.0, abs=1e-5)
    assert x.tolist() == [2.0] * 4
