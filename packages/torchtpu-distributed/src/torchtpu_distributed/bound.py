# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the one that started them, however that one ends.

    python bound.py NAME SIGNAL PARENT COMMAND...

runs a command that the kernel sends a signal when its parent has gone. A launcher that is killed
by SIGKILL tells nobody, and its ranks, which may be stopped or deep in compiled code, cannot be
relied on to look. Linux only; elsewhere the command runs as it is.

Imports neither torch nor JAX, nor its own package: it is run by itself, to be quick.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Whether the kernel can do it.
IS_POSSIBLE = sys.platform == "linux"
#: From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2


def end_with_parent(number: int, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent ends.

    Args:
        number: the signal.
        parent: the process that should be the parent; if it has gone, the signal is sent now.
    """
    if not IS_POSSIBLE:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        print(f"torchtpu: prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_with_parent_after_all() -> None:
    """Have SIGKILL sent when the parent ends, if the signal asked for then is one ignored here.

    torch.multiprocessing.spawn asks for SIGINT, which every process of a shell's job in the
    background (`python train.py &` in a script) ignores.
    """
    if not IS_POSSIBLE:
        return
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number))
    if number.value and signal.getsignal(number.value) == signal.SIG_IGN:
        end_with_parent(signal.SIGKILL)


def command(number: int, then: list[str], name: str, parent: int | None = None) -> list[str]:
    """A command line that runs another one bound to its parent.

    The interpreter that binds it is isolated: nothing of this folder or of the user's settings
    may hide a module of the standard library from it.

    Args:
        number: the signal that ends it.
        then: the command line.
        name: of what it runs. The first word that is no option is what torchrun calls a command of
            Python's by, as in `train.py FAILED`, so this file is the value of an option.
        parent: the process that will start it, if that is known.
    """
    if not IS_POSSIBLE:
        return then
    here = f"-cexec(open({__file__!r}).read())"
    return [sys.executable, "-I", "-S", here, name, str(int(number)), str(parent or ""), *then]


if __name__ == "__main__":
    _, _, signal_number, parent_id, *words = sys.argv
    end_with_parent(int(signal_number), int(parent_id) if parent_id else None)
    os.execvp(words[0], words)
