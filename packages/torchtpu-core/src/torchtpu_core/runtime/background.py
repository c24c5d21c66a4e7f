# SPDX-License-Identifier: Apache-2.0
"""Compiling programs on a thread of its own, while the script goes on.

Fused Eager asks for the program of a trace it has met before and runs the trace op by
op until the program is there. XLA compiles without the GIL; tracing and lowering take
it in turns with the script. A failed compilation is reported once and the trace goes on
running op by op: the error of an op then shows at the op's own line.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import heapq
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from torchtpu_core import _C
from torchtpu_core.runtime import caching, explanations, priorities, programs, varying
from torchtpu_core.runtime.trace_lowering import Description

log = logging.getLogger("torchtpu")

#: Threads that compile side by side, at most: tracing and lowering take turns for the GIL.
_MAX_THREADS = 8

#: Where most programs that a script can do without were found in the cache, those that are missing
#: can wait: an earlier process did without them, and a script that ends soon compiles nothing.
_PATIENCE_S = 60.0

#: A process that ends compiles what was asked for so long, at most: a share of its time, and
#: seconds. The next process finds these programs.
_LAST_SHARE, _LAST_S = 0.1, 5.0
_S_PER_OP = 0.02  # of a large program

#: After a program that is not urgent the compiling thread rests so many times as long as it took.
#: Two busy cores notice every program that is compiled beside the script.
_REST = 2

#: Is not urgent, ops, order of arrival, what makes it.
_Request: TypeAlias = tuple[bool, int, int, Callable[[], None]]

_began = time.monotonic()

#: How long the end of a process may wait for a compilation without a word.
_SILENT_S = 5.0
_AT_EXIT = (
    "torchtpu: the script is over; waiting for the program that is being compiled beside it, which "
    "XLA cannot stop. Ctrl-C ends the process at once."
)
#: What a shell takes for ended by Ctrl-C.
_INTERRUPTED = 130


class _Worker:
    """One daemon thread: takes what is urgent, then the smallest, and rests after what is not."""

    def __init__(self) -> None:
        self._requests: list[_Request] = []  # a heap
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._unfinished = 0
        self._waiting = 0
        self._rested_at = 0.0
        self._optional = 0  # requests that were not urgent
        self._is_patient = False
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, request: Callable[[], None], op_count: int, urgent: bool) -> None:
        """Queue the making of a program; starts the thread at the first one."""
        with self._changed:
            if self._stopped:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="torchtpu-compile", daemon=True
                )
                self._thread.start()
                atexit.register(self.stop)
            self._optional += not urgent
            if not urgent and not self._is_patient and programs.found_at_once >= self._optional:
                self._is_patient = True
                self._rested_at = time.monotonic() + _PATIENCE_S
            heapq.heappush(self._requests, (not urgent, op_count, next(self._count), request))
            self._unfinished += 1
            self._changed.notify_all()

    def under_way(self) -> int:
        """Programs that were asked for and are not compiled yet."""
        return self._unfinished

    def wait(self) -> None:
        """Return when everything that was asked for is compiled; meanwhile the thread rests not."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._unfinished == 0)
            finally:
                self._waiting -= 1

    def stop(self) -> None:
        """Make what is queued and soon made, drop the rest and wait for the one under way.

        XLA cannot be interrupted, and a thread that is inside it when the interpreter goes
        would abort the process. What it compiles is kept on disk, for the next run. A script
        that failed is left at once.
        """
        if caching.cache().enabled and not hasattr(sys, "last_value"):
            self._make_last(min((time.monotonic() - _began) * _LAST_SHARE, _LAST_S))
        with self._changed:
            self._stopped = True
            self._keep([])
            self._wait_for_the_last()

    def _wait_for_the_last(self) -> None:
        """Wait for what is under way, and say so if that takes long; Ctrl-C ends the process."""
        try:
            if not self._changed.wait_for(lambda: self._unfinished == 0, _SILENT_S):
                print(_AT_EXIT, file=sys.stderr, flush=True)
                self._changed.wait_for(lambda: self._unfinished == 0)
        except KeyboardInterrupt:
            sys.stdout.flush()
            os._exit(_INTERRUPTED)

    def _make_last(self, seconds: float) -> None:
        """Make what takes no longer, without rests; in a patient process only what is urgent."""
        with self._changed:
            is_patient = self._is_patient and self._rested_at > time.monotonic()
            left_s = seconds
            kept = []
            for asked in sorted(self._requests):
                left_s -= asked[1] * _S_PER_OP
                if left_s > 0 and not (is_patient and asked[0]):
                    kept.append(asked)
            self._keep(kept)
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._unfinished == 0, seconds)
            self._waiting -= 1

    def _keep(self, requests: list[_Request]) -> None:
        """Drop all others; these are in order."""
        self._unfinished -= len(self._requests) - len(requests)
        self._requests = requests

    def _run(self) -> None:
        priorities.give_way()
        while True:
            rests, *_, request = self._take()
            begun = time.monotonic()
            try:
                request()
            finally:
                del request
                took = time.monotonic() - begun
                if self._unfinished == 1:
                    give_back_heap()
                with self._changed:
                    if rests:
                        self._rested_at = begun + took * (1 + _REST)
                    self._unfinished -= 1
                    self._changed.notify_all()

    def _take(self) -> _Request:
        with self._changed:
            while True:
                left_s = self._rested_at - time.monotonic()
                is_due = self._waiting or left_s <= 0
                if self._requests and (is_due or not self._requests[0][0]):
                    return heapq.heappop(self._requests)
                self._changed.wait(max(left_s, 0.0) if self._requests else None)


def give_back_heap() -> None:
    """Return free memory to the system: the compiler frees far more than a small step takes.

    Does nothing where the C library is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # without the GIL


_worker = _Worker()


def make_later(request: Callable[[], None], op_count: int, *, urgent: bool = False) -> None:
    """Have the compiling thread make a program.

    Args:
        request: makes it and hands it over; raises nothing.
        op_count: of how many ops; small programs are soon made and come first.
        urgent: it comes before all others, and at once. Else it may take a while: such programs
            save little each, and many of them slow a script down while they are made.
    """
    _worker.submit(request, op_count, urgent)


def request_program(
    description: Description, pending: Any, reason: str, later: bool, urgent: bool
) -> None:
    """Have a program compiled; C++ calls this when a trace comes back.

    Args:
        description: the trace.
        pending: `_C.PendingProgram`, fulfilled or refused when done.
        reason: why the trace ended there.
        later: on the compiling thread; else before this returns.
        urgent: of a stream that will go on as it is.
    """
    explanations.note_compile(description, reason)
    if later:
        request = functools.partial(compile_now, description, pending)
        make_later(request, len(description["nodes"]), urgent=urgent)
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

    What a script reads in its own handlers at exit is compiled too, one after the other:
    Python starts no threads for a pool then.

    Args:
        descriptions: what `csrc/describe.cpp` makes of a trace; different ones.

    Returns:
        For each the program, or None where it could not be built.
    """
    sizes = [varying.sizes_seen(d) for d in descriptions]  # in the order of the calls
    try:
        return list(_pool().map(_build_or_none, descriptions, sizes))
    except RuntimeError:  # of the pool, as building raises nothing
        return list(map(_build_or_none, descriptions, sizes))


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
