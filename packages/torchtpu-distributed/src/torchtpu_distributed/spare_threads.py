# SPDX-License-Identifier: Apache-2.0
"""Threads for what may end up waiting for other ranks inside XLA or gloo."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

_Task = Callable[[], None]


class SpareThreads:
    """Threads that run one task each at a time, and another one when they have come to its end."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._spare = 0  # threads that wait for a task nobody has given them yet
        self._lock = threading.Lock()

    def run(self, target: Callable[..., None], *args: Any) -> None:
        """Call a function in a thread that has nothing else to do."""
        task = functools.partial(target, *args)
        with self._lock:
            is_spare, self._spare = self._spare > 0, max(0, self._spare - 1)
        if is_spare:
            self._tasks.put(task)
            return
        thread = threading.Thread(
            target=self._run_tasks, args=[[task]], name="tpu_dist", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def holds_caller(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._threads

    def stop(self, patience_s: float) -> bool:
        """End them after what they have; whether all have ended in time."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run_tasks(self, given: list[_Task | None]) -> None:
        while (task := given.pop()) is not None:
            task()
            del task  # with what it has worked on
            with self._lock:
                self._spare += 1
            given.append(self._tasks.get())
