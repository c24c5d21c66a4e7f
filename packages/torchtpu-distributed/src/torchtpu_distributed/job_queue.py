# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives of a group, one after another, in whichever thread waits for one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from torchtpu_distributed.work import QueuedWork

#: How long a queued collective waits for a thread that waits for it: who waits at once does it
#: sooner than another thread can, and the two would contend for the interpreter.
_GRACE_S = 0.0002

#: Performs a collective and gives its work, done or failed.
Job = Callable[[], QueuedWork]


class JobQueue:
    """Jobs that run in their order, one at a time.

    Args:
        spawn: runs a function in a thread of its own.
    """

    def __init__(self, spawn: Callable[[Callable[[], None]], object]) -> None:
        self._spawn = spawn
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._called = False  # a thread has been asked to come
        self._begun = 0  # jobs that have left the queue
        self._hurry = threading.Event()

    def add(self, job: Job) -> None:
        """Run a job after those before it, in a thread that waits for it or another."""
        with self._lock:
            self._jobs.append(job)
        self._serve_behind()

    def is_idle(self) -> bool:
        """Whether no job is queued or under way."""
        with self._lock:
            return not (self._busy or self._jobs)

    def help_until(self, is_over: Callable[[], bool]) -> None:
        """Run what is queued in this thread, until it is over or another thread runs it."""
        while not is_over() and self._take_over():
            self._run_next()
        self._serve_behind()

    def hurry(self) -> None:
        """Run what is queued now: nobody may wait for it."""
        self._hurry.set()

    def _serve_behind(self) -> None:
        """Let a thread work the queue off, if there is something in it and none does."""
        with self._lock:
            needed = not (self._busy or self._called) and bool(self._jobs)
            self._called = self._called or needed
        if needed:
            self._spawn(self._work_off)

    def _take_over(self) -> bool:
        """Become the thread that works the queue off, if it needs one."""
        with self._lock:
            free = not self._busy and bool(self._jobs)
            self._busy = self._busy or free
        return free

    def _work_off(self) -> None:
        """Work the queue off, once nobody else has begun to for a while."""
        known = -1
        while known != self._begun:
            known = self._begun
            self._hurry.wait(_GRACE_S)
        with self._lock:
            self._called = False
            self._hurry.clear()
        while self._take_over():
            self._run_next()

    def _run_next(self) -> None:
        """Run the first job, in the thread that has taken over.

        Callbacks of a collective's future may call others and wait for them, so while
        they run, somebody else may work the queue off.
        """
        with self._lock:
            job = self._jobs.popleft()
            self._begun += 1
        try:
            work = job()
        finally:
            del job  # with the memory it has worked on
            with self._lock:
                self._busy = False
        if work.has_callbacks:
            self._serve_behind()
        work.complete()
