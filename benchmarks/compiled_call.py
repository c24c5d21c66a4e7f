# SPDX-License-Identifier: Apache-2.0
"""What calling a compiled two-op function costs the calling thread, beside Inductor.

    python benchmarks/compiled_call.py

One process, 8x8 float32, with and without gradients: `backend="tpu"` on tpu tensors, Inductor on
CPU tensors, and, for the floor, Dynamo's guards around a function that does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from _measure import Spread, save

ROUNDS, CALLS = 40, 150


def _compiled(backend: Any, device: str, grad: bool) -> Callable[[], Any]:
    def two_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * 2.0

    torch.manual_seed(0)
    x = torch.randn(8, 8).to(device).detach().clone().requires_grad_(grad)
    y = torch.randn(8, 8).to(device)
    function = torch.compile(two_ops, backend=backend)
    for _ in range(10):
        function(x, y)
    return lambda: function(x, y)


def _guards_only() -> Callable[[], Any]:
    blank = [torch.zeros(8, 8)]
    return _compiled(lambda _module, _inputs: lambda *_: blank, "cpu", grad=False)


def main() -> None:
    """Measure in turns, print, save."""
    torch.set_num_threads(1)
    candidates = {
        "guards": _guards_only(),
        "inductor": _compiled("inductor", "cpu", grad=False),
        "tpu": _compiled("tpu", "tpu", grad=False),
        "inductor, gradients": _compiled("inductor", "cpu", grad=True),
        "tpu, gradients": _compiled("tpu", "tpu", grad=True),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            began = time.thread_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.thread_time() - began) / CALLS * 1e6)
            torch.tpu.synchronize()
    figures = {name: {"thread_us": str(Spread.of(taken))} for name, taken in times.items()}
    for name, row in figures.items():
        print(f"{name:20s} {row['thread_us']} us")
    print("saved", save("compiled_call", figures).name)


if __name__ == "__main__":
    main()
