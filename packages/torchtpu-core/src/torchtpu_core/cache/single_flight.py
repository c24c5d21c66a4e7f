# SPDX-License-Identifier: Apache-2.0
"""One compiles, the others wait: across processes and threads.

The lock is one of the operating system's on a file, which ends with the process that holds
it, however it ends. The wait is bounded: whoever has waited long enough, or cannot lock at
all, goes on alone, which costs time and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

_POLL_S = 0.01


@contextlib.contextmanager
def single_flight(path: Path | None, wait_s: float) -> Iterator[bool]:
    """Hold the lock of a file, if it can be had in time.

    Args:
        path: the file; None: there is nothing to lock.
        wait_s: seconds to wait at most.

    Yields:
        Whether the lock is held.
    """
    if path is None:
        yield False
        return
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=wait_s, poll_interval=_POLL_S)
    except (OSError, NotImplementedError):  # Timeout is an OSError
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            lock.release()
