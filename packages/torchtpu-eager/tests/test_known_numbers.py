# SPDX-License-Identifier: Apache-2.0
"""Numbers that the host asks of tensors that stay, such as the true elements of a mask."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torchtpu_core import _C, calls

STEPS = 12


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    torch.tpu.init()
    with torch.tpu.set_eager_mode("fused"):
        yield


def _host_reads() -> int:
    torch.tpu.synchronize()
    torch.tpu.wait_for_compiles()
    count: int = torch.tpu.counters()["flushes"].get("host read", 0)
    return count


def _mask(*true: int, size: int = 12) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(true)] = True
    return mask


def _picks(x: Tensor, mask: Tensor) -> Tensor:
    return (x[mask] * 2).sum(0) + x[~mask].sum(0) + x[torch.arange(12, device=x.device) < 5].sum(0)


def test_a_mask_that_stays_stops_no_step() -> None:
    x, mask = torch.randn(12, 3), _mask(1, 5, 6)
    x_tpu, mask_tpu = x.to("tpu"), mask.to("tpu")
    for _ in range(STEPS):
        result = _picks(x_tpu, mask_tpu)
        torch.tpu.synchronize()
    before = _host_reads()
    for _ in range(3):
        result = _picks(x_tpu, mask_tpu)
        torch.tpu.synchronize()
    assert _host_reads() == before
    torch.testing.assert_close(result.cpu(), _picks(x, mask))


def test_questions_about_indices_that_stay() -> None:
    index = torch.tensor([3, 1, 4, 1, 5], device="tpu")

    def asked() -> tuple[Any, ...]:
        return (
            index.max().item(),
            (index == 1).sum().item(),
            bool((index < 0).any()),
            bool((index > 0).all()),
            int(torch.count_nonzero(index - 1)),
        )

    for _ in range(STEPS):
        answers = asked()
        torch.tpu.synchronize()
    before = _host_reads()
    assert asked() == answers == (5, 2, False, True, 3)
    assert _host_reads() == before


def _written(mask: Tensor, step: int) -> Tensor:
    mask[step % len(mask)] ^= True
    return mask


def _written_through_data(mask: Tensor, step: int) -> Tensor:
    mask.data[step % len(mask)] ^= True
    return mask


def _written_through_a_view(mask: Tensor, step: int) -> Tensor:
    mask.view(3, 4)[step % 3].logical_not_()
    return mask


def _copied(mask: Tensor, step: int) -> Tensor:
    mask.copy_(_mask(*range(step % 12)))
    return mask


def _assigned(mask: Tensor, step: int) -> Tensor:
    if mask.device.type == "tpu":
        calls.assign(mask, calls.array_of(_mask(*range(step % 7)).to("tpu")))
        return mask
    return mask.copy_(_mask(*range(step % 7)))


def _new(mask: Tensor, step: int) -> Tensor:
    return _mask(*range(step % 12)).to(mask.device)


def _by_a_number(mask: Tensor, step: int) -> Tensor:
    return torch.arange(12, device=mask.device) < step % 12


def _by_a_part(mask: Tensor, step: int) -> Tensor:
    return torch.arange(40, device=mask.device)[step : step + 12] < 15


def _by_powers(mask: Tensor, step: int) -> Tensor:
    return torch.arange(12, device=mask.device).pow(2).sub(step * 7).remainder(5).eq(step % 5)


@pytest.mark.parametrize(
    "change",
    [
        _written,
        _written_through_data,
        _written_through_a_view,
        _copied,
        _assigned,
        _new,
        _by_a_number,
        _by_a_part,
        _by_powers,
    ],
)
def test_a_mask_that_changes_is_counted_anew(change: Callable[[Tensor, int], Tensor]) -> None:
    x = torch.randn(12, 3)

    def picked(device: str) -> list[Tensor]:
        mask, found = _mask(1, 5, 6).to(device), []
        on_device = x.to(device)
        for step in range(2 * STEPS):
            mask = change(mask, step)
            found.append(on_device[mask].cpu())
            assert len(found[-1]) == int(mask.sum())
        return found

    for ours, expected in zip(picked("tpu"), picked("cpu"), strict=True):
        assert torch.equal(ours, expected)


def test_random_masks_are_counted_anew() -> None:
    counts = {int((torch.rand(400, device="tpu") < 0.5).sum()) for _ in range(STEPS)}
    assert len(counts) > 1


def test_memory_that_others_write_is_not_remembered() -> None:
    x = torch.zeros(12, dtype=torch.int32, device="tpu")
    found = []
    for step in range(STEPS):
        array = calls.own_array(x)
        assert array is not None
        memory = (ctypes.c_int32 * 12).from_address(array.unsafe_buffer_pointer())
        memory[:] = [step] * 12
        del array
        found.append([int((x + 1).max()), int((x + 1).max())])
    assert found == [[step + 1] * 2 for step in range(STEPS)]


def test_elements_of_new_masks_are_found_without_a_program() -> None:
    masks = [_mask(*range(n)) for n in range(9)]
    on_device = [mask.to("tpu") for mask in masks]
    torch.tpu.synchronize()
    before = torch.tpu.counters()["runs"]
    found = [mask.nonzero() for mask in on_device]
    torch.tpu.synchronize()
    assert torch.tpu.counters()["runs"] == before
    for ours, mask in zip(found, masks, strict=True):
        assert torch.equal(ours.cpu(), mask.nonzero())


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1],
        lambda x: x[:, ::2],
        lambda x: x.expand(2, 3, 4),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: -x,
        lambda x: x.to(torch.complex64).conj(),
        lambda x: x.add_(1),
        lambda x: torch.where(x > 0, x.nan_to_num(), float("nan")),
    ],
)
def test_positions_are_the_cpus_each_time(form: Callable[[Tensor], Tensor]) -> None:
    drawn = torch.Generator().manual_seed(3)
    x = torch.randint(-1, 2, (3, 4), generator=drawn).float()
    on_device = x.to("tpu")
    for _ in range(3):  # found by the host, then by the device
        ours, expected = form(on_device).nonzero(), form(x).nonzero()
        assert torch.equal(ours.cpu(), expected)
        assert len(expected) == 0 or ours.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_positions_are_found_in_dtypes_that_cpu_pytorch_does_not_search(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 2.0]).to(dtype).to("tpu")
    assert x.nonzero().tolist() == [[1], [2]]


def test_finding_positions_takes_simulated_time() -> None:
    mask = (torch.arange(1 << 20) % 3 == 0).to("tpu")
    torch.tpu.synchronize()
    before = _C.device_time_ps(0)
    mask.nonzero()
    assert _C.device_time_ps(0) - before > 0
