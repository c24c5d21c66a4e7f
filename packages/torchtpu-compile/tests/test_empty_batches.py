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
