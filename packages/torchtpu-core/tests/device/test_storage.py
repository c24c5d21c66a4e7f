# SPDX-License-Identifier: Apache-2.0
"""Storages: identity, size, copies, and what has no meaning on a device."""

from __future__ import annotations

import pytest
import torch


def test_storage_knows_its_device_and_size():
    storage = torch.zeros(6, device="tpu").untyped_storage()
    assert storage.device == torch.device("tpu:0")
    assert storage.nbytes() == 24
    assert storage.is_tpu


def test_storage_moves_to_the_host_and_back():
    x = torch.arange(4, dtype=torch.int32, device="tpu")
    host = x.untyped_storage().cpu()
    assert host.device.type == "cpu"
    assert torch.tensor([], dtype=torch.int32).set_(host).tolist() == [0, 1, 2, 3]
    back = host.tpu()
    assert torch.empty(0, dtype=torch.int32, device="tpu").set_(back).tolist() == [0, 1, 2, 3]


def test_storage_clone_is_a_copy():
    x = torch.zeros(4, device="tpu")
    clone = x.untyped_storage().clone()
    x.fill_(1)
    assert torch.empty(0, device="tpu").set_(clone).tolist() == [0.0] * 4


def test_storage_resize_to_zero_and_back_frees_and_allocates():
    x = torch.ones(4, device="tpu")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.fill_(2)
    assert x.tolist() == [2.0] * 4


def test_distinct_tensors_have_distinct_addresses():
    x, y = torch.zeros(4, device="tpu"), torch.zeros(4, device="tpu")
    assert x.data_ptr() != y.data_ptr()
    assert x.data_ptr() == x.view(2, 2).data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4


def test_freed_storage_is_an_error_to_read_and_usable_after_it_is_written():
    x = torch.ones(4, device="tpu")
    storage = x.untyped_storage()
    nbytes = storage.nbytes()
    storage.resize_(0)
    for read in (x.cpu, lambda: x + 1):
        with pytest.raises(RuntimeError, match="freed with resize_"):
            read()
    storage.resize_(nbytes)
    x.fill_(2)
    assert x.tolist() == [2.0] * 4


def test_a_copy_of_nothing_can_be_resized_and_read():
    for start in (torch.empty(0, device="tpu").clone(), torch.ones(0, device="tpu")):
        assert start.resize_(2, 2).cpu().shape == (2, 2)
        assert start.fill_(3).tolist() == [[3.0, 3.0], [3.0, 3.0]]
