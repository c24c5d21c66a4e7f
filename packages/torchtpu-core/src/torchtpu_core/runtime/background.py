# SPDX-License-Identifier: Apache-2.0
"""Compiling programs on a thread of its own, while the script goes on.

Fused Eager asks for the program of a trace it has met before and runs the trace op by
op until the program is there. XLA compiles without the GIL; tracing and lowering take
it in turns with the script. A failed compilation is reported once and the trace goes on
running op by op: the error of an op then shows at the op's own line.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchtpu_core import _C
from torchtpu_core.runtime import explanations, priorities, programs, varying
from torchtpu_core.runtime.trace_lowering import Description

log = logging.getLogger("torchtpu")

#: Threads that compile side by side, at most: tracing and lowering take turns for the GIL.
_MAX_THREADS = 8


class _Worker:
    """One daemon thread that takes the smallest request, of those the first."""

    def __init__(self) -> None:
        self._requests: queue.PriorityQueue[tuple[int, int, Callable[[], None]]]
        self._requests = queue.PriorityQueue()
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, request: Callable[[], None], op_count: int) -> None:
        """Queue the making of a program; starts the thread at the first one."""
        with self._lock:
            if self._stopped:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="torchtpu-compile", daemon=True
                )
                self._thread.start()
                atexit.register(self.stop)
        self._requests.put((op_count, next(self._count), request))

    def under_way(self) -> int:
        """Programs that were asked for and are not compiled yet."""
        return self._requests.unfinished_tasks

    def wait(self) -> None:
        """Return when everything that was asked for is compiled."""
        self._requests.join()

    def stop(self) -> None:
        """Drop what is queued and wait for the one under way.

        XLA cannot be interrupted, and a thread that is inside it when the interpreter goes
        would abort the process. What it compiles is kept on disk, for the next run.
        """
        self._stopped = True
        while True:
            try:
                self._requests.get_nowait()
            except queue.Empty:
                break
            self._requests.task_done()
        self._requests.join()

    def _run(self) -> None:
        priorities.give_way()
        while True:
            *_, request = self._requests.get()
            try:
                request()
            finally:
                del request
                self._requests.task_done()


_worker = _Worker()


def make_later(request: Callable[[], None], op_count: int) -> None:
    """Have the compiling thread make a program.

    Args:
        request: makes it and hands it over; raises nothing.
        op_count: of how many ops; small programs are soon made and come first.
    """
    _worker.submit(request, op_count)


def request_program(description: Description, pending: Any, reason: str, later: bool) -> None:
    """Have a program compiled; C++ calls this when a trace comes back.

    Args:
        description: the trace.
        pending: `_C.PendingProgram`, fulfilled or refused when done.
        reason: why the trace ended there.
        later: on the compiling thread; else before this returns.
    """
    explanations.note_compile(description, reason)
    if later:
        request = functools.partial(compile_now, description, pending)
        make_later(request, len(description["nodes"]))
    else:
        compile_now(description, pending)


def compile_now(description: Description, pending: Any) -> None:
    """Compile a program and hand it over; a failure is logged, not raised."""
    try:
        pending.fulfil(programs.compile_program(description))
    except Exception as error:
        pending.refuse()
        explanations.note_refusal(description, error)
        log.warning(
            "<TorchTpu/fused> a program of %d ops could not be built and runs op by op: %s: %s",
            len(description["nodes"]),
            type(error).__name__,
            error,
        )


def build_side_by_side(descriptions: list[Description]) -> list[Any]:
    """The programs of several traces, compiled on all cores; returns when all are there.

    Args:
        descriptions: what `csrc/describe.cpp` makes of a trace; different ones.

    Returns:
        For each the program, or None where it could not be built.
    """
    sizes = [varying.sizes_seen(d) for d in descriptions]  # in the order of the calls
    return list(_pool().map(_build_or_none, descriptions, sizes))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Threads that stay: a stream of other sizes at each step would start them at each step."""
    count = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    return ThreadPoolExecutor(count, thread_name_prefix="torchtpu-compile")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads are not inherited


def _build_or_none(description: Description, sizes_seen: Sequence[Any]) -> Any:
    try:
        return programs.build_noted(description, sizes_seen)
    except Exception:  # the op raises it again, at its own line
        return None


def wait_for_compiles() -> None:
    """Wait until every program that was asked for is there (`torch.tpu.wait_for_compiles`)."""
    _C.flush()
    _worker.wait()


def compiles_under_way() -> int:
    """Number of programs being compiled or queued for it."""
    return _worker.under_way()
