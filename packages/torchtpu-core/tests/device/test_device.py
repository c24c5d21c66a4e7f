# SPDX-License-Identifier: Apache-2.0
"""The device itself: its name, count, current index, guards and description."""

from __future__ import annotations

import threading

import pytest
import torch
from torchtpu_core.errors import DeviceIndexError


def test_backend_is_named_tpu():
    assert torch._C._get_privateuse1_backend_name() == "tpu"
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.device("tpu", 1) == torch.device("tpu:1")


def test_available_and_counted():
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() == 4


def test_set_device_changes_where_tensors_go():
    torch.tpu.set_device(2)
    assert torch.tpu.current_device() == 2
    assert torch.ones(2, device="tpu").device == torch.device("tpu:2")


@pytest.mark.parametrize("device", [1, "tpu:1", torch.device("tpu:1")])
def test_device_context_restores(device):
    with torch.tpu.device(device):
        assert torch.tpu.current_device() == 1
    assert torch.tpu.current_device() == 0


def test_device_context_of_a_negative_index_does_nothing():
    with torch.tpu.device(-1):
        assert torch.tpu.current_device() == 0


def test_device_context_restores_after_an_exception():
    with pytest.raises(KeyError), torch.tpu.device(3):
        raise KeyError
    assert torch.tpu.current_device() == 0


def test_device_of_follows_the_tensor():
    with torch.tpu.device_of(torch.empty(1, device="tpu:3")):
        assert torch.tpu.current_device() == 3
    with torch.tpu.device_of(torch.empty(1)):
        assert torch.tpu.current_device() == 0


@pytest.mark.parametrize("index", [4, 126, 100000])
def test_index_beyond_the_count_is_refused(index):
    with pytest.raises(DeviceIndexError, match=r"this process sees 4 tpu device"):
        torch.tpu.set_device(index)


def test_tensor_on_a_missing_device_is_refused():
    with pytest.raises(DeviceIndexError, match="Valid indices are 0 to 3"):
        torch.empty(1, device="tpu:9")


def test_other_device_type_is_refused():
    with pytest.raises(ValueError, match="Expected a tpu device"):
        torch.tpu.set_device("cpu")


def test_each_thread_has_its_own_current_device():
    seen = []

    def work():
        seen.append(torch.tpu.current_device())
        torch.tpu.set_device(3)

    torch.tpu.set_device(1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.tpu.current_device() == 1


def test_properties_describe_the_simulated_chip():
    properties = torch.tpu.get_device_properties(0)
    assert properties.simulated
    assert properties.target == "v5e:2x2"
    assert torch.tpu.get_device_name() == properties.name
    assert properties.total_memory == torch.tpu.mem_get_info()[1]


def test_generated_methods_exist():
    tensor = torch.ones(2)
    assert not tensor.is_tpu
    assert tensor.tpu().is_tpu
    assert tensor.tpu(2).device.index == 2
    assert torch.nn.Linear(2, 2).tpu().weight.device.type == "tpu"


def test_default_device_applies_to_factories():
    with torch.device("tpu:1"):
        assert torch.zeros(2).device == torch.device("tpu:1")
        assert torch.nn.Linear(2, 2).weight.device == torch.device("tpu:1")
    assert torch.zeros(2).device.type == "cpu"


def test_meta_module_materialises_on_the_device():
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    module.to_empty(device="tpu")
    module.load_state_dict({"weight": torch.eye(2), "bias": torch.ones(2)})
    assert module(torch.ones(2, device="tpu")).tolist() == [2.0, 2.0]
