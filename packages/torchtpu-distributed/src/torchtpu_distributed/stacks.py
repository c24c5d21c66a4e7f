# SPDX-License-Identifier: Apache-2.0
"""Where the main thread is: for collectives that other threads call, and for late ranks."""

from __future__ import annotations

import site
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(
    {
        *site.getsitepackages(),
        sysconfig.get_path("stdlib"),
        str(Path(__file__).parent),
    }
)


def main_stack() -> str:
    """The innermost lines of the main thread."""
    frame = _main_frame()
    return "".join(traceback.format_stack(frame)[-12:]) if frame is not None else ""


def main_line() -> str:
    """The innermost line of the main thread that is not library code; empty if there is none.

    A collective of the backward pass is called by autograd's thread, which has no line;
    the main thread is at ``loss.backward()`` then.
    """
    frame = _main_frame()
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)
