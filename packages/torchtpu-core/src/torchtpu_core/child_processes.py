# SPDX-License-Identifier: Apache-2.0
"""Child processes that end when their parent does, however it ends.

The parent holds one end of a pipe that nobody writes to; the system closes it when the parent
ends, by a signal that cannot be caught too, and a thread of the child sees that. What the child
started sees the child end in the same way.

A child that starts several of a kind forks them (`fork`): imports are made once for all.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: What tells this process, and those that it forks, of the parent's end.
_pipe: int | None = None


class Child(subprocess.Popen[Any]):
    """A Python program that ends with this process.

    Args:
        code: the program; what it imports is imported after it listens for the parent's end.
        arguments: its `sys.argv` after the first.
        **how: as of `subprocess.Popen`.
    """

    def __init__(self, code: str, arguments: Sequence[str], **how: Any) -> None:
        reading, writing = os.pipe()
        self._close = weakref.finalize(self, os.close, writing)
        start = f"from {__name__} import end_with_parent; end_with_parent({reading}); {code}"
        try:
            super().__init__([sys.executable, "-c", start, *arguments], pass_fds=(reading,), **how)
        finally:
            os.close(reading)

    def __exit__(self, *failure: Any) -> None:
        """Ends the child if it still runs."""
        if self.poll() is None:
            self.kill()
        super().__exit__(*failure)
        self._close()


def end_with_parent(pipe: int) -> None:
    """Ends this process once the other end of a pipe is closed."""
    global _pipe
    _pipe = pipe

    def listen() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=listen, name="torchtpu-parent", daemon=True).start()


def fork(run: Callable[[], Any], *, output: Path | None, errors: Path) -> int:
    """Runs a function in a copy of this process, which ends with this one's parent.

    This process must have imported what `run` needs, and used neither a device nor autograd,
    whose threads a copy lacks.

    Args:
        run: the function; what it raises, `SystemExit` included, ends the copy as a program.
        output: where its standard output goes; None for this process's.
        errors: where its standard error goes.

    Returns:
        The copy's process identifier, to wait for.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # collections in the copy would touch, and so copy, all memory that is shared
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _redirect(2, errors)
        if output is not None:
            _redirect(1, output)
        if _pipe is not None:
            end_with_parent(_pipe)
        run()
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(descriptor: int, path: Path) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), descriptor)


def _status(code: Any) -> int:
    """The status of a program that ended by ``sys.exit(code)``."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
