# SPDX-License-Identifier: Apache-2.0
"""Child processes that end when their parent does, however it ends.

The parent holds one end of a pipe that nobody writes to; the system closes it when the parent
ends, by a signal that cannot be caught too, and a thread of the child sees that. What the child
started sees the child end in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any


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

    def listen() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=listen, name="torchtpu-parent", daemon=True).start()
