# SPDX-License-Identifier: Apache-2.0
"""Several devices of one process: work stays where its tensors are."""

from __future__ import annotations

import threading

import pytest
import torch


def test_result_is_on_the_operands_device_whatever_is_current():
    x = torch.ones(4, device="tpu:2")
    torch.tpu.set_device(1)
    assert (x + 1).device == torch.device("tpu:2")
    assert torch.tpu.current_device() == 1


def test_copy_between_devices():
    x = torch.arange(4.0, device="tpu:0")
    y = x.to("tpu:3")
    x.zero_()
    assert y.device.index == 3
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_copy_into_a_slice_on_another_device():
    x = torch.zeros(2, 3, device="tpu:1")
    x[1].copy_(torch.arange(3, device="tpu:0"))
    assert x.tolist() == [[0.0] * 3, [0.0, 1.0, 2.0]]


def test_operands_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match=r"same device.*tpu:0.*tpu:1|tpu:1.*tpu:0"):
        torch.ones(2, device="tpu:0") + torch.ones(2, device="tpu:1")


def test_host_operand_is_refused():
    with pytest.raises(RuntimeError, match="cpu"):
        torch.ones(2, device="tpu") + torch.ones(2)


def test_host_scalar_tensor_is_taken():
    assert (torch.ones(2, device="tpu:1") + torch.tensor(2.0)).tolist() == [3.0, 3.0]


def test_backward_crosses_devices():
    x = torch.ones(3, device="tpu:0", requires_grad=True)
    (x * 2).to("tpu:1").mul(3).sum().backward()
    assert x.grad.device.index == 0
    assert x.grad.tolist() == [6.0] * 3


def test_model_split_over_two_devices_trains():
    first = torch.nn.Linear(4, 4).to("tpu:0")
    second = torch.nn.Linear(4, 1).to("tpu:1")
    expected_first, expected_second = (
        torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    )  # fmt: skip
    expected_first.load_state_dict({k: v.cpu() for k, v in first.state_dict().items()})
    expected_second.load_state_dict({k: v.cpu() for k, v in second.state_dict().items()})
    x = torch.ones(2, 4)
    second(first(x.to("tpu:0")).relu().to("tpu:1")).sum().backward()
    expected_second(expected_first(x).relu()).sum().backward()
    torch.testing.assert_close(first.weight.grad.cpu(), expected_first.weight.grad)


def test_generators_of_devices_are_independent():
    torch.manual_seed(0)
    first = torch.rand(4, device="tpu:0").tolist()
    torch.manual_seed(0)
    torch.rand(4, device="tpu:1")
    assert torch.rand(4, device="tpu:0").tolist() == first


def test_threads_work_on_their_own_devices():
    results = {}

    def work(index):
        x = torch.full((4,), float(index), device=f"tpu:{index}")
        for _ in range(5):
            x = x + 1
        results[index] = x.tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [i + 5.0] * 4 for i in range(4)}


def test_threads_share_one_tensor():
    x = torch.zeros(4, device="tpu")
    barrier = threading.Barrier(2)
    results = []

    def work():
        barrier.wait()
        results.append((x + 1).sum().item())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [4.0, 4.0]


def test_synchronize_of_one_device_reports_only_its_errors():
    x = torch.arange(4.0, device="tpu:1")
    x[torch.tensor([9], device="tpu:1")]
    torch.tpu.synchronize(0)
    with pytest.raises(IndexError):
        torch.tpu.synchronize(1)
