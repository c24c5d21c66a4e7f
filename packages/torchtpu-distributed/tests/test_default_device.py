# SPDX-License-Identifier: Apache-2.0
"""`torch.set_default_device` and `with torch.device(...)` change no collective."""

from __future__ import annotations

import pytest
import torch

DEVICES = ["tpu", "meta"]


@pytest.mark.parametrize("device", DEVICES)
def test_all_gather_into_columns_under_a_default_device(pair, device):
    each = [torch.arange(3), torch.arange(3) + 10]
    for found in pair("default_device.gathered_into_columns", device, each=each):
        assert found.tolist() == torch.stack(each, 1).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_all_to_all_under_a_default_device(pair, device):
    each = [[torch.tensor([r, 10 + s]) for s in range(2)] for r in range(2)]
    answers = pair("default_device.exchanged", device, each=each)
    for rank, found in enumerate(answers):
        assert [t.tolist() for t in found] == [each[r][rank].tolist() for r in range(2)]
