# SPDX-License-Identifier: Apache-2.0
"""Memory figures follow the tensors that live, and simulated HBM ends."""

from __future__ import annotations

import gc
import inspect

import pytest
import torch
from torchtpu_core import _C
from torchtpu_core.calls import device_call


@pytest.fixture
def little_room():
    """Leaves 64 KiB on device 0."""
    _C.set_memory_limit(0, torch.tpu.memory_allocated(0) + 64 * 1024)
    yield
    _C.set_memory_limit(0, torch.tpu.mem_get_info(0)[1])


def test_allocated_grows_and_shrinks_with_a_tensor():
    gc.collect()
    before = torch.tpu.memory_allocated()
    x = torch.ones(256, 64, device="tpu")
    assert torch.tpu.memory_allocated() - before == x.nbytes
    del x
    assert torch.tpu.memory_allocated() == before


def test_figures_count_what_fused_eager_has_only_recorded():
    with torch.tpu.set_eager_mode("fused"):
        before = torch.tpu.memory_allocated()
        x = torch.ones(256, 64, device="tpu") + 1
        assert torch.tpu.memory_allocated() - before == x.nbytes
        y = x * 2
        statistics = torch.accelerator.memory_stats()
        assert statistics["allocated_bytes.all.current"] - before == x.nbytes + y.nbytes


def test_view_adds_nothing():
    x = torch.ones(256, 64, device="tpu")
    before = torch.tpu.memory_allocated()
    views = [x[1:], x.t(), x.view(-1)]
    assert torch.tpu.memory_allocated() == before
    assert len(views) == 3


def test_peak_remembers_what_died():
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    torch.ones(256, 64, device="tpu")
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() - before >= 256 * 64 * 4


def test_each_device_counts_its_own():
    before = torch.tpu.memory_allocated(0)
    x = torch.ones(16, device="tpu:1")
    assert torch.tpu.memory_allocated(0) == before
    assert torch.tpu.memory_allocated(1) >= x.nbytes


def test_training_steps_do_not_grow_memory():
    model = torch.nn.Linear(8, 8).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model(torch.ones(4, 8, device="tpu")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    gc.collect()
    settled = torch.tpu.memory_allocated()
    for _ in range(5):
        step()
    gc.collect()
    assert torch.tpu.memory_allocated() == settled


def test_inplace_update_donates_instead_of_copying():
    x = torch.ones(64, 64, device="tpu")
    x.mul_(2)
    torch.tpu.reset_counters()
    torch.tpu.reset_peak_memory_stats()
    x.mul_(2)
    assert torch.tpu.counters()["donated_bytes"] == x.nbytes
    assert torch.tpu.max_memory_allocated() - torch.tpu.memory_allocated() <= x.nbytes


def test_mem_get_info_adds_up():
    free, total = torch.tpu.mem_get_info()
    assert total - free == torch.tpu.memory_allocated()


def test_live_values_name_the_line_that_made_them():
    line = inspect.currentframe().f_lineno + 1
    kept = torch.ones(300, 300, device="tpu")
    largest = torch.tpu.memory.live_values()[0]
    assert largest.shape == kept.shape
    assert largest.nbytes == kept.nbytes
    assert largest.dtype == torch.float32
    assert f"{__file__}:{line}" in largest.line


def test_program_that_does_not_fit_is_out_of_memory(little_room):
    x = torch.ones(64, 64, device="tpu")
    with pytest.raises(torch.OutOfMemoryError, match=r"simulated v5e:2x2.*tpu:0"):
        x.expand(16, 64, 64).add(1)


def test_transfer_that_does_not_fit_is_out_of_memory(little_room):
    host = torch.zeros(256, 256)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        host.to("tpu")


def test_transfers_have_the_room_of_what_only_recorded_work_holds(little_room):
    with torch.tpu.set_eager_mode("fused"):
        kept = []
        for number in range(5):
            whole = torch.full((96, 128), float(number)).to("tpu")  # 48 KiB
            kept.append(whole[0] * 2)
            del whole
        assert [row[0].item() for row in kept] == [0, 2, 4, 6, 8]


def test_out_of_memory_leaves_the_tensors_as_they_were(little_room):
    x = torch.ones(64, 64, device="tpu")
    failures = torch.tpu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError):
        x.expand(16, 64, 64).add(1)
    assert torch.tpu.memory_stats()["num_ooms"] == failures + 1
    assert x.sum().item() == 64 * 64
    assert x.add_(1).sum().item() == 2 * 64 * 64


def test_out_of_memory_is_caught_as_cuda_code_catches_it(little_room):
    with pytest.raises(RuntimeError):
        torch.zeros(256, 256).to("tpu")


def test_memory_summary_names_the_largest_values_and_the_line_that_made_them():
    x = torch.ones(1024, 256, device="tpu")
    torch.tpu.synchronize()
    text = torch.tpu.memory_summary()
    assert f"{torch.tpu.memory_allocated():,}" in text
    row = next(line for line in text.splitlines() if "[1024, 256] torch.float32" in line)
    assert f"{x.nbytes:,}" in row and "test_memory.py" in row
    assert "[1024, 256]" not in torch.tpu.memory_summary(abbreviated=True)


@pytest.fixture
def whole_memory_afterwards():
    yield
    torch.tpu.set_per_process_memory_fraction(1.0, 1)


def test_memory_fraction_limits_one_device(whole_memory_afterwards):
    total = torch.tpu.get_device_properties(1).total_memory
    torch.tpu.set_per_process_memory_fraction(4096 / total, 1)
    assert torch.tpu.get_per_process_memory_fraction(1) == 4096 / total
    assert torch.tpu.get_per_process_memory_fraction(0) == 1.0
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(64, 64, device="tpu:1")
    assert torch.ones(64, 64, device="tpu:0").sum().item() == 4096


@pytest.mark.parametrize(("fraction", "error"), [(1.5, ValueError), ("half", TypeError)])
def test_memory_fraction_out_of_range_is_refused(fraction, error):
    with pytest.raises(error, match="fraction"):
        torch.tpu.set_per_process_memory_fraction(fraction)


def test_nested_stats_hold_the_flat_ones():
    flat = torch.tpu.memory_stats()
    nested = torch.tpu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["peak"] == flat["allocated_bytes.all.peak"]
    assert nested["num_ooms"] == flat["num_ooms"]


def test_peak_counts_the_temporaries_of_a_program() -> None:
    cube = device_call("tests::cube", lambda arrays: ((arrays[0] @ arrays[0]) @ arrays[0],))
    x = torch.ones(256, 256, device="tpu")

    def run() -> torch.Tensor:
        return cube([x], [], [], lambda: [([256, 256], [256, 1], torch.float32)])[0]

    run()
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    result = run()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before == result.nbytes
    assert torch.tpu.max_memory_allocated() - before >= result.nbytes + x.nbytes
