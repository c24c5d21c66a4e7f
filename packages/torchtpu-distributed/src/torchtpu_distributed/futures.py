# SPDX-License-Identifier: Apache-2.0
"""Futures of collectives as Python sees them: their callbacks run where they are given.

A callback may call collectives, as DDP's communication hooks do. Those must stand at the same
place among the others on every rank, so no other thread may run the callback at a time of its
own. Giving one therefore waits for the collective, as if both were work on one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")
Tensors = list[torch.Tensor]


class Waits(Protocol):
    """The work of a collective."""

    def wait_for_future(self, future: torch.futures.Future[Any]) -> None:
        """Wait until the collective is over, and this future of it is complete."""


class FutureInOrder(torch.futures.Future[Tensors]):  # type: ignore[misc]  # untyped base
    """A future of a collective's results.

    Args:
        work: the collective.
    """

    def __init__(self, work: Waits) -> None:
        super().__init__()
        self._work = work

    def then(self, callback: Callable[[torch.futures.Future[Tensors]], T]) -> Any:
        """Wait, and run a callback; a future of what it returns."""
        self._work.wait_for_future(self)
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[torch.futures.Future[Tensors]], None]) -> None:
        """Wait, and run a callback."""
        self._work.wait_for_future(self)
        super().add_done_callback(callback)
