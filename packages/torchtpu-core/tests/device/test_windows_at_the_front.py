# SPDX-License-Identifier: Apache-2.0
"""Views of nearly all of a tensor, of which programs know whether they start at its front."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

SEQUENCES, TOKENS, WORDS = 3, 16, 40
WINDOWS = ((0, 15), (1, 16), (0, 15), (0, 14), (2, 16), (1, 16))


@pytest.mark.parametrize("first", [0, 1])
def test_windows_of_nearly_all_tokens_have_the_values_of_the_cpu(first) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SEQUENCES, TOKENS, 8, generator=generator)
    weight = torch.randn(8, WORDS, generator=generator)
    labels = torch.randint(0, WORDS, (SEQUENCES, TOKENS), generator=generator)

    def gradient(device: str, start: int, end: int) -> torch.Tensor:
        w = weight.to(device).requires_grad_()
        logits = (x.to(device) @ w)[:, start:end]
        wanted = labels.to(device)[:, : end - start]
        loss = F.cross_entropy(logits.reshape(-1, WORDS), wanted.reshape(-1))
        return torch.autograd.grad(loss, w)[0].cpu()

    for start, end in WINDOWS[first:]:
        torch.testing.assert_close(gradient("tpu", start, end), gradient("cpu", start, end))


def test_windows_of_nearly_all_rows_are_written_where_they_lie() -> None:
    results = []
    for device in ("tpu", "cpu"):
        x = torch.zeros(5, 8, device=device)
        for start in (0, 1, 0, 1):
            x[start : start + 4] += start + 1
        results.append(x.cpu())
    torch.testing.assert_close(*results)
