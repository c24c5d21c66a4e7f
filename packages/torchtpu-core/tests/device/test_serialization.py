# SPDX-License-Identifier: Apache-2.0
"""Saving, loading, pickling and deep copies keep values, devices and sharing."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch


def _saved(obj):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return buffer


def _x():
    return torch.arange(6.0, device="tpu").reshape(2, 3)


def test_load_returns_to_the_device():
    loaded = torch.load(_saved(_x()))
    assert loaded.device == torch.device("tpu:0")
    assert torch.equal(loaded.cpu(), _x().cpu())


@pytest.mark.parametrize("place", ["cpu", torch.device("cpu"), {"tpu:0": "cpu"}])
def test_map_location_to_the_host(place):
    loaded = torch.load(_saved(_x()), map_location=place)
    assert loaded.device.type == "cpu"
    assert torch.equal(loaded, _x().cpu())


@pytest.mark.parametrize("place", ["tpu", "tpu:2"])
def test_map_location_from_the_host(place):
    loaded = torch.load(_saved(torch.ones(3)), map_location=place)
    assert loaded.device == torch.device("tpu", torch.device(place).index or 0)
    assert loaded.tolist() == [1.0] * 3


def test_load_of_a_missing_device_is_refused():
    with pytest.raises(RuntimeError, match="tpu"):
        torch.load(_saved(torch.ones(3)), map_location="tpu:9")


def test_views_keep_sharing_after_loading():
    x = _x()
    whole, row = torch.load(_saved([x, x[1]]))
    row.fill_(9)
    assert whole[1].tolist() == [9.0] * 3


def test_weights_only_loads_a_state_dict():
    model = torch.nn.Linear(3, 2).to("tpu")
    state = torch.load(_saved(model.state_dict()), weights_only=True)
    other = torch.nn.Linear(3, 2).to("tpu")
    other.load_state_dict(state)
    assert torch.equal(other.weight.cpu(), model.weight.cpu())


def test_optimizer_state_survives():
    model = torch.nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    model(_x()).sum().backward()
    optimizer.step()
    other = torch.optim.Adam(model.parameters())
    other.load_state_dict(torch.load(_saved(optimizer.state_dict())))
    moment = other.state[model.weight]["exp_avg"]
    assert moment.device.type == "tpu"
    assert torch.equal(moment.cpu(), optimizer.state[model.weight]["exp_avg"].cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.complex64])
def test_pickle_keeps_dtype_and_device(dtype):
    x = torch.ones(3).to(dtype).to("tpu")
    loaded = pickle.loads(pickle.dumps(x))
    assert (loaded.device, loaded.dtype) == (x.device, dtype)
    assert torch.equal(loaded.cpu().float(), torch.ones(3))


def test_parameter_pickles_as_a_parameter():
    parameter = torch.nn.Parameter(_x())
    loaded = pickle.loads(pickle.dumps(parameter))
    assert isinstance(loaded, torch.nn.Parameter)
    assert loaded.requires_grad


def test_deepcopy_is_independent_and_keeps_sharing():
    x = _x()
    twin, row = copy.deepcopy([x, x[0]])
    x.zero_()
    row.fill_(7)
    assert twin.tolist() == [[7.0] * 3, [3.0, 4.0, 5.0]]


def test_deepcopy_of_a_module_trains_apart():
    model = torch.nn.Linear(3, 2).to("tpu")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.weight.zero_()
    assert twin.weight.abs().sum().item() > 0
    assert twin.weight.device == model.weight.device


def test_generator_state_pickles():
    state = pickle.loads(pickle.dumps(torch.tpu.get_rng_state()))
    assert torch.equal(state, torch.tpu.get_rng_state())


def test_flags_of_a_tensor_are_saved_and_loaded_with_it(tmp_path):
    tensor = torch.ones(2, device="tpu")
    assert torch._utils.get_tensor_metadata(tensor) == {}
    torch._utils.set_tensor_metadata(tensor, {"mine": True})
    torch.save(tensor, tmp_path / "tensor.pt")
    loaded = torch.load(tmp_path / "tensor.pt")
    assert torch._utils.get_tensor_metadata(loaded) == {"mine": True}
    on_cpu = torch.load(tmp_path / "tensor.pt", map_location="cpu")
    assert torch._utils.get_tensor_metadata(on_cpu) == {}
