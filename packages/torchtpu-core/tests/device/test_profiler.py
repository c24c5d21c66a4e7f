# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own profilers see the ops of the device, and the older one its time."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def test_profile_lists_ops_and_named_ranges():
    x = torch.ones(8, 8, device="tpu")
    with (
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found,
        record_function("my range"),
    ):
        (x @ x).sum().item()
    names = {event.key for event in found.key_averages()}
    assert {"my range", "aten::mm", "aten::sum"} <= names


def test_autograd_profiler_with_use_device_reports_time_of_the_device(capfd):
    x = torch.ones(256, 256, device="tpu")
    (x @ x).sum().item()
    with torch.autograd.profiler.profile(use_device="tpu") as found:
        (x @ x).sum().item()
    times = {event.key: event.device_time_total for event in found.key_averages()}
    assert times["aten::matmul"] > 0
    assert "Exception in RecordFunction" not in capfd.readouterr().err
