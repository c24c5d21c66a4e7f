# SPDX-License-Identifier: Apache-2.0
"""Copies between the host and the device keep values, dtypes, strides and privacy."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.testing.lowering import assert_close

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_dtype_and_bits(dtype):
    x = torch.tensor([0.0, 1.0, 2.0, 3.0]).to(dtype)
    back = x.to("tpu").cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), 2**63 - 1])
def test_64_bit_integers_are_not_truncated(value):
    assert torch.tensor([value], device="tpu").item() == value
    assert (torch.tensor([value], device="tpu") * 1).item() == value


def test_double_precision_is_kept():
    assert (torch.tensor(1.0, dtype=torch.float64, device="tpu") + 1e-12).item() == 1.0 + 1e-12


@pytest.mark.parametrize("source", DTYPES[:15], ids=str)
def test_cast_on_the_device_matches_cpu(source):
    x = torch.tensor([0, 1, 5, 100]).to(source)
    for target in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
        assert_close(x.to("tpu").to(target).cpu(), x.to(target))


@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_cast_to_8_bit_floats_matches_cpu(target):
    x = torch.tensor([0.1, -1.7, 300.0, 3e-3])
    actual = x.to("tpu").to(target)
    assert torch.equal(actual.cpu().float(), x.to(target).float())
    assert torch.equal(actual.float().cpu(), x.to(target).float())


def test_source_may_be_written_after_the_copy():
    x = torch.zeros(4)
    y = x.to("tpu")
    x.fill_(1)
    assert y.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_host_copy_does_not_alias_the_device():
    x = torch.zeros(4, device="tpu")
    host = x.cpu()
    host.fill_(1)
    x.add_(2)
    assert x.tolist() == [2.0] * 4
    assert host.tolist() == [1.0] * 4


def test_transfer_of_a_transposed_tensor_keeps_values():
    x = torch.arange(6.0).reshape(2, 3).t()
    assert torch.equal(x.to("tpu").cpu(), x)
    assert x.to("tpu").stride() == x.stride()


def test_transfer_keeps_channels_last():
    x = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    y = x.to("tpu")
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y.cpu(), x)


def test_copy_into_a_slice_from_the_host():
    x = torch.zeros(2, 3, device="tpu")
    x[1].copy_(torch.arange(3.0))
    assert x.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]


def test_copy_from_a_slice_to_the_host():
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    host = torch.zeros(2)
    host.copy_(x[:, 1])
    assert host.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(("to", "of"), [("tpu", "cpu"), ("cpu", "tpu"), ("tpu:0", "tpu:1")])
def test_functional_copy_crosses_devices(to, of):
    here, there = torch.zeros(3, 4).t().to(to), torch.arange(3.0).to(of)
    copied = torch.ops.aten.copy(here, there)
    assert copied.device.type == torch.device(to).type
    assert copied.stride() == here.stride()
    assert torch.equal(copied.cpu(), torch.arange(3.0).expand(4, 3))


def test_copy_broadcasts_and_casts():
    x = torch.zeros(2, 3, device="tpu")
    x.copy_(torch.tensor([1, 2, 3]))
    assert x.tolist() == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    x.copy_(torch.tensor([4, 5, 6], device="tpu"))
    assert x[0].tolist() == [4.0, 5.0, 6.0]


def test_copy_between_overlapping_views_reads_first():
    results = []
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0, device=device)
        x[1:].copy_(x[:-1].clone())
        results.append(x.tolist())
    assert results[0] == results[1]


def test_non_blocking_copy_is_correct_without_a_synchronisation():
    x = torch.arange(4.0).pin_memory()
    y = x.to("tpu", non_blocking=True) + 1
    assert y.cpu().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_pinned_memory_says_so():
    x = torch.zeros(4).pin_memory()
    assert x.is_pinned()
    assert not torch.zeros(4).is_pinned()


def test_to_the_same_place_returns_the_tensor():
    x = torch.zeros(4, device="tpu")
    assert x.to("tpu") is x
    assert x.to("tpu", copy=True) is not x


def test_item_of_several_elements_is_refused():
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.zeros(2, device="tpu").item()


@pytest.mark.parametrize(("value", "kind"), [(1.5, float), (3, int), (True, bool), (1j, complex)])
def test_item_has_the_python_type(value, kind):
    item = torch.tensor(value, device="tpu").item()
    assert type(item) is kind
    assert item == value


def test_promotion_of_host_numbers_matches_cpu():
    for left in (torch.int32, torch.bfloat16, torch.float64, torch.bool):
        for right in (2, 2.5, torch.tensor(2.5), torch.tensor(3, dtype=torch.int64)):
            x = torch.ones(2, dtype=left)
            expected = x + right
            actual = x.to("tpu") + right
            assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_truths_of_any_byte_arrive_as_true(shape: tuple[int, ...]) -> None:
    octets = torch.full(shape, 132, dtype=torch.uint8)
    truths = octets.view(torch.bool).to("tpu")
    assert (truths == torch.ones(shape, dtype=torch.bool, device="tpu")).cpu().all()
    assert truths.sum().item() == octets.numel()
