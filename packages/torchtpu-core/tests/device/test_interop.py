# SPDX-License-Identifier: Apache-2.0
"""NumPy, DLPack and Python buffers meet the device through the host, and say so."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def test_numpy_needs_the_host():
    with pytest.raises(TypeError, match=r"Tensor\.cpu"):
        torch.ones(2, device="tpu").numpy()


def test_numpy_force_copies():
    assert torch.ones(2, device="tpu").numpy(force=True).tolist() == [1.0, 1.0]


def test_numpy_arrays_come_in():
    array = np.arange(3, dtype=np.int16)
    x = torch.from_numpy(array).to("tpu")
    array[:] = 0
    assert x.tolist() == [0, 1, 2]
    assert x.dtype == torch.int16


def test_list_of_tensors_becomes_a_tensor():
    parts = [torch.tensor(1.0, device="tpu"), torch.tensor(2.0, device="tpu")]
    assert torch.stack(parts).tolist() == [1.0, 2.0]
    assert torch.tensor(parts).tolist() == [1.0, 2.0]


def test_python_numbers_convert():
    x = torch.tensor(3, device="tpu")
    assert int(x) == 3
    assert float(x) == 3.0
    assert bool(x)
    assert list(range(5))[x] == 3
    assert f"{torch.tensor(2.5, device='tpu'):.2f}" == "2.50"


def test_truth_of_several_elements_is_ambiguous():
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(torch.ones(2, device="tpu"))


def test_iteration_and_membership():
    x = torch.arange(3, device="tpu")
    assert [int(i) for i in x] == [0, 1, 2]
    assert 2 in x
    assert len(x) == 3


def test_dlpack_capsule_returns_the_same_tensor():
    x = torch.arange(4.0, device="tpu")
    y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert y.device == x.device
    y[0] = 9
    assert x.tolist() == [9.0, 1.0, 2.0, 3.0]


def test_dlpack_of_a_host_copy_reaches_numpy():
    assert np.from_dlpack(torch.ones(2, device="tpu").cpu()).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "view", [lambda x: x[1:], lambda x: x.t()[1:], lambda x: x[1:, 2:], lambda x: x.flatten()[5]]
)
def test_dlpack_capsule_of_a_view_with_an_offset_is_that_view(view):
    host = torch.arange(12.0).reshape(3, 4)
    x = host.to("tpu")
    y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(view(x)))
    assert torch.equal(y.cpu(), view(host))
    y.mul_(2)
    view(host).mul_(2)
    assert torch.equal(x.cpu(), host)
    y.copy_(torch.ones(y.shape))
    view(host).fill_(1)
    assert torch.equal(x.cpu(), host)


@pytest.mark.parametrize("source", [np.arange(3), torch.arange(3)], ids=["numpy", "torch"])
def test_dlpack_to_the_device_copies(source):
    x = torch.from_dlpack(source, device="tpu")
    source[0] = 9
    assert x.is_tpu
    assert x.tolist() == [0, 1, 2]


def _small_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()),
        *(torch.nn.ConvTranspose2d(4, 2, 2), torch.nn.Flatten(), torch.nn.Linear(50, 3)),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, _image())])
def test_torchscript_gives_the_modules_values_and_gradients(make):
    network = _small_network().eval().to("tpu")
    expected = network(_image())
    wanted = torch.autograd.grad(expected.sin().sum(), list(network.parameters()))
    scripted = make(network)
    for _ in range(3):  # the second call is optimized
        result = scripted(_image())
        gradients = torch.autograd.grad(result.sin().sum(), list(network.parameters()))
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-5)


def _image():
    return torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(1)).to("tpu")
