# SPDX-License-Identifier: Apache-2.0
"""Creating tensors on the device gives what creating them on the CPU gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

_LIKE = torch.arange(6, dtype=torch.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, 3, dtype=torch.int64, device=d),
        lambda d: torch.full((2, 3), 7, device=d),
        lambda d: torch.full((2,), True, device=d),
        lambda d: torch.full((2,), 1 + 2j, device=d),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.arange(0.0, 1.0, 0.25, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.logspace(0, 2, 3, device=d),
        lambda d: torch.eye(2, 3, device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.triu_indices(3, 4, device=d),
        lambda d: torch.scalar_tensor(3.5, device=d),
        lambda d: torch.tensor([[1.5, 2.0]], device=d),
        lambda d: torch.tensor(3, device=d),
        lambda d: torch.as_tensor(np.arange(3.0), device=d),
        lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
        lambda d: torch.hann_window(5, device=d),
        lambda d: torch.zeros_like(_LIKE, device=d),
        lambda d: torch.full_like(_LIKE.to(d), 2.5),
        lambda d: torch.ones_like(_LIKE.to(d), dtype=torch.int32),
        lambda d: _LIKE.to(d).new_zeros(3),
        lambda d: _LIKE.to(d).new_full((2,), 4),
        lambda d: _LIKE.to(d).new_tensor([1.0, 2.0]),
        lambda d: torch.zeros(0, 3, device=d),
        lambda d: torch.zeros((), device=d),
    ],
)
def test_factory_matches_cpu(make):
    actual, expected = make("tpu"), make("cpu")
    assert actual.device == torch.device("tpu:0")
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


def test_empty_strided_keeps_strides():
    assert torch.empty_strided((2, 3), (1, 2), device="tpu").stride() == (1, 2)


def test_empty_honours_memory_format():
    x = torch.empty(2, 3, 4, 5, device="tpu", memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(x).stride() == x.stride()


def test_requires_grad_is_honoured():
    assert torch.zeros(2, device="tpu", requires_grad=True).requires_grad


def test_out_of_a_factory_is_resized_and_filled():
    out = torch.empty(0, device="tpu")
    assert torch.arange(3, out=out).data_ptr() == out.data_ptr()
    assert out.tolist() == [0.0, 1.0, 2.0]


def test_randperm_is_a_permutation():
    assert sorted(torch.randperm(16, device="tpu").tolist()) == list(range(16))


def test_like_factory_of_another_device_goes_there():
    assert torch.zeros_like(_LIKE.to("tpu"), device="cpu").device.type == "cpu"
    assert torch.zeros_like(_LIKE.to("tpu"), device="tpu:1").device.index == 1


def test_zeros_in_a_sparse_layout_hold_no_element():
    made = torch.zeros(2, 2, device="tpu", layout=torch.sparse_coo)
    assert (made.device.type, made.layout, made._nnz()) == ("tpu", torch.sparse_coo, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_unwritten_memory_with_deterministic_algorithms_holds_what_cpu_has(dtype):
    torch.use_deterministic_algorithms(True)
    try:
        for make in (
            lambda device: torch.empty(3, dtype=dtype, device=device),
            lambda device: torch.empty_strided((2, 2), (1, 2), dtype=dtype, device=device),
            lambda device: torch.ones(2, dtype=dtype, device=device).resize_(4),
        ):
            torch.testing.assert_close(
                make("tpu").cpu(), make("cpu"), rtol=0, atol=0, equal_nan=True
            )
    finally:
        torch.use_deterministic_algorithms(False)


def test_linspace_of_a_million_whole_numbers_is_exact():
    x = torch.linspace(0, 999_999, 1_000_000, dtype=torch.int64, device="tpu")
    assert torch.equal(x.cpu(), torch.arange(1_000_000))


def test_new_empty_strided_keeps_strides_of_overlapping_elements():
    made = torch.zeros(5, 5, device="tpu").new_empty_strided((5, 3), (0, 1))
    assert made.stride() == (0, 1)


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(4.0, out=out),
        lambda out: torch.linspace(0, 3, 4, out=out),
        lambda out: torch.logspace(0, 3, 4, out=out),
        lambda out: torch.arange(0, 0, out=out[:, :0]),
        lambda out: torch.linspace(0, 1, 0, out=out[:, :0]),
    ],
)
def test_ramp_fills_an_out_of_as_many_elements_in_its_own_shape(fill):
    expected, whole = torch.zeros(2, 3), torch.zeros(2, 3, device="tpu")
    shape = fill(expected[:, 1:]).shape
    assert fill(whole[:, 1:]).shape == shape
    assert torch.equal(whole.cpu(), expected)


def test_ramp_resizes_an_out_of_another_size_with_one_warning():
    out = torch.zeros(2, 3, device="tpu")
    with pytest.warns(UserWarning, match="resized") as warned:
        torch.arange(4.0, out=out)
    assert len(warned) == 1
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
