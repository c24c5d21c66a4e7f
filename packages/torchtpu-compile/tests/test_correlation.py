# SPDX-License-Identifier: Apache-2.0
"""All pixels of one image beside all of another of the same, changing size (RAFT, LoFTR)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile import records


def correlate(first: Tensor, second: Tensor) -> Tensor:
    batch, channels, height, width = first.shape
    rows, columns = (image.view(batch, channels, height * width) for image in (first, second))
    volume = (rows.mT @ columns).view(batch * height * width, 1, height, width)
    coarse = F.avg_pool2d(volume, 2, 2)
    return coarse.square().sum() + volume.view(batch, height, width, -1).amax(-1).sum()


def test_correlation_volumes_of_changing_images_share_a_program() -> None:
    function = torch.compile(correlate, backend="tpu")
    counts = []
    for size in [(4, 5), (6, 8), (7, 10), (9, 6)]:
        images = [torch.randn(1, 2, *size, requires_grad=True) for _ in range(2)]
        on_device = [image.detach().to("tpu").requires_grad_() for image in images]
        expected = correlate(*images)
        expected.backward()
        with records.recording() as compiled:
            actual = function(*on_device)
            actual.backward()
            torch.tpu.synchronize()
        counts.append(sum(name.startswith("graph.") for name, _, _ in compiled))
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
        for a, e in zip(on_device, images, strict=True):
            torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=1e-4, atol=1e-4)
    assert counts == [2, 2, 0, 0]
