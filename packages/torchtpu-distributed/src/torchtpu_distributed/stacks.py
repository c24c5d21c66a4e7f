# SPDX-License-Identifier: Apache-2.0
"""Where threads are: for collectives called without a line of the script, and for late ranks.

And for which module of FSDP2's: its layers may share a line.
"""

from __future__ import annotations

import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import FrameType

from torchtpu_distributed import _C

_INSTALLED = tuple(site.getsitepackages())
_OWN = str(Path(__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")
_LIBRARIES = (*_INSTALLED, _OWN, _STANDARD)
#: Threads that the interpreter and other libraries (autograd) have made.
_NOT_STARTED = (threading._MainThread, threading._DummyThread)  # type: ignore[attr-defined]


def main_stack() -> str:
    """The innermost lines of the main thread, without those of this package that wait for it."""
    frames = list(_frames(_main_frame()))
    below = list(takewhile(_may_wait, frames))
    own = [i for i, frame in enumerate(below, 1) if frame.f_code.co_filename.startswith(_OWN)]
    shown = frames[own[-1] :] if own else frames
    return "".join(traceback.format_stack(shown[0])[-12:]) if shown else ""


def main_line() -> str:
    """The script's line at which the main thread is; empty if there is none."""
    return _script_line(_main_frame())


def stand_in_line() -> str:
    """What stands for the line of a call that no line of the script has led to on this thread.

    A collective of the backward pass is called by autograd's thread, which Python has not
    started; the main thread is at ``loss.backward()`` then. A thread that a library has started
    (``dcp.async_save``) goes on while the main thread is anywhere: it is named itself, with
    the library's line that its work began at.
    """
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    if thread is not None and not isinstance(thread, _NOT_STARTED):
        files = [(f, f.f_code.co_filename) for f in _frames(sys._getframe())]
        began = [f for f, name in files if name.startswith(_INSTALLED) and _OWN not in name]
        if began:
            return f"{_place(began[-1])}, on thread {thread.name}"
    return main_line()


def module_of_fsdp() -> str:
    """For which module FSDP2 calls a collective on this thread, as an end of its description."""
    name = _C.fsdp_range()
    return f" in {name}" if name else ""


def _may_wait(frame: FrameType) -> bool:
    """Whether it is of this package, or of what that calls."""
    name = frame.f_code.co_filename
    is_standard = name.startswith(_STANDARD) and not name.startswith(_INSTALLED)
    return is_standard or name.startswith(_OWN)


def _script_line(innermost: FrameType | None) -> str:
    """The innermost line that is not library code; empty if there is none."""
    for frame in _frames(innermost):
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
            return _place(frame)
    return ""


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)
