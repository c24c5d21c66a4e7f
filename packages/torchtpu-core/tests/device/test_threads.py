# SPDX-License-Identifier: Apache-2.0
"""Several Python threads use one device at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def _work(device: str, number: int) -> tuple[list[float], float]:
    """Reads, in-place writes and backward passes; `tolist` enters C++ with the GIL held."""
    x = torch.full((4, 4), float(number), device=device)
    for _ in range(60):
        x = x * 0.5 + number
        x[0].add_(1)
        x.tolist()
    y = torch.full((4,), float(number), device=device, requires_grad=True)
    for _ in range(10):
        (y * y).sum().backward()
    assert y.grad is not None
    return x.sum(1).tolist(), y.grad.sum().item()


@pytest.mark.timeout(120)
def test_four_threads_get_what_each_gets_alone_on_cpu() -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: _work("tpu", n), range(1, 5)))
    for number, (rows, gradient) in enumerate(found, start=1):
        wanted_rows, wanted_gradient = _work("cpu", number)
        assert rows == pytest.approx(wanted_rows, rel=1e-5)
        assert gradient == pytest.approx(wanted_gradient, rel=1e-5)
