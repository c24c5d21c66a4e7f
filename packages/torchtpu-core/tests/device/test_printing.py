# SPDX-License-Identifier: Apache-2.0
"""Printing shows values, device and dtype."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(2.5),
        torch.arange(6).reshape(2, 3),
        torch.tensor([1.0, float("nan"), float("inf")]),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.zeros(0, 2),
        torch.arange(3000.0),
    ],
    ids=lambda x: f"{x.dtype}-{list(x.shape)}",
)
def test_repr_is_cpus_with_the_device(x):
    shown = repr(x.to("tpu")).replace(", device='tpu:0'", "")
    assert shown.split() == repr(x).split()


def test_repr_of_a_parameter_and_of_a_gradient_function():
    x = torch.nn.Parameter(torch.ones(2, device="tpu"))
    assert "Parameter containing" in repr(x)
    assert "requires_grad=True" in repr(x)
    assert "grad_fn=<MulBackward0>" in repr(x * 2)


def test_repr_of_another_device_names_it():
    assert "device='tpu:3'" in repr(torch.ones(1, device="tpu:3"))


def test_printing_does_not_change_the_random_state():
    torch.manual_seed(0)
    before = torch.tpu.get_rng_state()
    repr(torch.ones(3, device="tpu"))
    assert torch.equal(torch.tpu.get_rng_state(), before)
