# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector and the tracing of programs.

Tracing makes many objects at once. That sets off full collections, each of which walks all
objects of torch and JAX (0.3 s) with the GIL held: the script waits even for a program that is
traced on another thread.

JAX gives the collector a callback written in Python. Python handles a signal where it next runs
Python code, so Ctrl-C that comes in a collection is raised in that callback, or in a finalizer,
and lost.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.Lock()
_blocks = 0
_was_enabled = False


class _Signal(int):
    """A signal that Python handles next, as soon as an attribute has been read.

    It would handle it within the caller after a call, and does not after the read of an attribute.
    """

    comes = property(_thread.interrupt_main)


_CTRL_C = _Signal(signal.SIGINT)


def keep_interrupts() -> None:
    """Raise Ctrl-C that a callback of the collector or a finalizer swallows again, in the script.

    Through Python's own hook for exceptions that nobody can catch; the one before serves the rest.
    """
    present = sys.unraisablehook
    if not (isinstance(present, functools.partial) and present.func is _heed):
        sys.unraisablehook = functools.partial(_heed, present)


def _heed(before: Callable[[Any], Any], lost: Any) -> object:
    if not issubclass(lost.exc_type, KeyboardInterrupt) or _ends(lost):
        return before(lost)
    return _CTRL_C.comes


def _ends(lost: Any) -> bool:
    """Whether Python itself ends: it waits for threads, or calls what `atexit` has."""
    return lost.err_msg is not None or not callable(lost.object)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles inside the block, in any thread; as before after the last one."""
    global _blocks, _was_enabled
    with _lock:
        if _blocks == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _was_enabled:
                gc.enable()
