# SPDX-License-Identifier: Apache-2.0
"""PyTorch's threads of autograd, at the end of a process.

They drop the Python objects of the last backward pass after ``backward`` has returned. A
thread that asks for the GIL during shutdown is ended by force, and unwinding through torch's
noexcept functions then aborts the process.
"""

from __future__ import annotations

from torchtpu_core import _C

#: A backward pass of a daemon thread may never end; on a busy machine one may take seconds.
_PATIENCE_S = 10.0


def wait() -> None:
    """Return once they have dropped the last backward pass, while there still is a GIL."""
    _C.wait_for_autograd(_PATIENCE_S)
