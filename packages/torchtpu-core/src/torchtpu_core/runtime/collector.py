# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector and the tracing of programs.

Tracing makes many objects at once. That sets off full collections, each of which walks all
objects of torch and JAX (0.3 s) with the GIL held: the script waits even for a program that is
traced on another thread.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_blocks = 0
_was_enabled = False


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
