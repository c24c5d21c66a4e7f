# SPDX-License-Identifier: Apache-2.0
"""One compiles, the others wait: across processes and threads.

The lock is one of the operating system's on a file, which ends with the process that holds
it, however it ends. A process that was stopped (Ctrl-Z) holds on to it: the file is then given
up for a new one, so that one of those who wait compiles (Linux). The wait is bounded: whoever
has waited long enough, or cannot lock at all, goes on alone, which costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

_POLL_S = 0.01
#: How often those who wait look whether the holder was stopped.
_LOOK_S = 0.25


@contextlib.contextmanager
def single_flight(
    path: Path | None, wait_s: float, complain: Callable[[str], None] = lambda why: None
) -> Iterator[bool]:
    """Hold the lock of a file, if it can be had in time.

    Args:
        path: the file; None: there is nothing to lock.
        wait_s: seconds to wait at most.
        complain: is told about a holder that does not make the program.

    Yields:
        Whether the lock is held.
    """
    lock = None if path is None else filelock.FileLock(path, thread_local=False)
    if path is None or lock is None or not _acquire(lock, path, wait_s, complain):
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            lock.release()


def _acquire(
    lock: filelock.BaseFileLock, path: Path, wait_s: float, complain: Callable[[str], None]
) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        left_s = max(deadline - time.monotonic(), 0.0)
        try:
            lock.acquire(timeout=min(left_s, _LOOK_S), poll_interval=_POLL_S)
            return True
        except filelock.Timeout:
            holder = _holder(path)
        except (OSError, NotImplementedError):
            return False
        if left_s <= _LOOK_S:
            complain(f"process {holder or '(unknown)'} has not compiled it in {wait_s:g} s")
            return False
        if holder is not None and _is_stopped(holder):
            complain(f"process {holder}, which compiles it, is stopped")
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _holder(path: Path) -> int | None:
    """The process that holds the lock of a file, if the system says."""
    try:
        inode = str(path.stat().st_ino)
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in locks:  # "1: FLOCK ADVISORY WRITE 4079 fe:00:2312074 0 EOF"
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
            return int(fields[4])
    return None


def _is_stopped(process: int) -> bool:
    """Whether a process was stopped by a signal and not continued."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"
