# SPDX-License-Identifier: Apache-2.0
"""Threads that compile give way to those that compute (Linux).

XLA:CPU compiles on a pool of threads that it makes for the first program of a process. While a
program is compiled behind the script's back, they would take their share of each core from the
steps. Where the script waits for the program they have the cores to themselves as before.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

#: What compiling threads have more than others, as nice values (0 to 19, low ones come first).
NICER = 10

_TASKS = Path("/proc/self/task")
_lock = threading.Lock()
_is_made = False


def give_way() -> None:
    """Lower the priority of the calling thread."""
    if _TASKS.is_dir():
        _lower(threading.get_native_id())


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Around each compilation: the threads that the first one makes give way.

    Threads that they make later have their priority.
    """
    global _is_made
    if _is_made or not _TASKS.is_dir():
        yield
        return
    with _lock:
        before = _native_threads()
        try:
            yield
        finally:
            if not _is_made:
                _is_made = True
                for thread in _native_threads() - before:
                    _lower(thread)


def _lower(thread: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or may not be changed
        nice = os.getpriority(os.PRIO_PROCESS, thread) + NICER
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))


def _native_threads() -> set[int]:
    """Threads of this process that Python did not start."""
    own = {thread.native_id for thread in threading.enumerate()}
    return {int(task.name) for task in _TASKS.iterdir()} - own
