# SPDX-License-Identifier: Apache-2.0
"""Several Python threads use one device at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torchtpu_core import _C


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


def test_the_end_of_a_process_waits_for_threads_of_autograd_but_not_for_ever() -> None:
    reached, go_on = threading.Event(), threading.Event()
    x = torch.ones(2, device="tpu", requires_grad=True)
    loss = (x * 3).sum()

    def wait(gradient: torch.Tensor) -> None:
        reached.set()
        go_on.wait(60)

    x.register_hook(wait)
    with ThreadPoolExecutor(1) as threads:
        passing = threads.submit(loss.backward)
        assert reached.wait(60)
        assert not _C.wait_for_autograd(0.01)
        go_on.set()
        passing.result(60)
    assert _C.wait_for_autograd(60.0)
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
