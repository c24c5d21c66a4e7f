# SPDX-License-Identifier: Apache-2.0
"""Compiled models take an empty batch that PyTorch's own shape rules refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(
    "shape", [(0, 3, 4), (0, 3, 4, 4), (0, 3, 4, 4, 4)], ids=["waves", "images", "volumes"]
)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_compiled_interpolation_of_an_empty_batch_equals_eager(mode, shape) -> None:
    layer = nn.Upsample(scale_factor=2, mode=mode)
    x = torch.zeros(shape, device="tpu", requires_grad=True)
    out = torch.compile(layer, backend="tpu")(x)
    assert out.shape == layer(x).shape
    out.sum().backward()
    assert x.grad.shape == x.shape


def test_empty_batch_is_taken_after_an_export_too() -> None:
    # torch.export drops what others have registered for operators that it takes apart.
    layer = nn.Upsample(scale_factor=2)
    torch.export.export(layer, (torch.zeros(1, 3, 4, 4),)).run_decompositions()
    assert torch.compile(layer, backend="tpu")(torch.zeros(0, 3, 4, 4, device="tpu")).numel() == 0
