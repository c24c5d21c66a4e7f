# SPDX-License-Identifier: Apache-2.0
"""Debug mode: the observer around every op, and `torch.tpu.debug`.

The mode runs one op at a time and waits for it, so that each failure is raised at its
line; the observer adds the checks of `torchtpu_eager.options.DebugOptions`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torchtpu_core.execution import user_line
from torchtpu_core.tpu.eager import EagerMode, set_eager_mode

from torchtpu_eager import comparison, indices, memory, nonfinite, options
from torchtpu_eager.operands import Call, read_call
from torchtpu_eager.options import DebugOptions


class DebugObserver:
    """Watches every op according to some options."""

    def __init__(self, chosen: DebugOptions) -> None:
        self.chosen = chosen

    def before(self, op: str, args: Sequence[Any]) -> Call:
        """Check indices and keep what the later checks need."""
        call = read_call(op, args, user_line())
        if self.chosen.indices:
            indices.before(call)
        if self.chosen.nonfinite:
            nonfinite.before(call)
        if self.chosen.compare:
            comparison.before(call)
        return call

    def after(self, token: Call, results: Sequence[Any]) -> None:
        """Look at what the op made."""
        if self.chosen.compare:
            comparison.after(token, results)
        if self.chosen.nonfinite:
            nonfinite.after(token, results)

    def failed(self, token: Call, error: BaseException) -> None:
        """Explain an out-of-memory error."""
        if self.chosen.memory and isinstance(error, torch.OutOfMemoryError):
            memory.failed(token, error)


def make_observer() -> DebugObserver:
    """The observer for the options in force."""
    return DebugObserver(options.current())


def debug(**chosen: Any) -> contextlib.AbstractContextManager[None]:
    """Debug mode for a ``with`` block.

    Args:
        **chosen: fields of `torchtpu_eager.options.DebugOptions`, all bool.

    Raises:
        DebugOptionError: there is no such option.

    >>> with torch.tpu.debug(compare=True):  # doctest: +SKIP
    ...     loss = model(x).sum()
    """
    return _debugging(options.parse(chosen))


@contextlib.contextmanager
def _debugging(chosen: DebugOptions) -> Iterator[None]:
    options.push(chosen)
    try:
        mode = set_eager_mode(EagerMode.DEBUG)
    except BaseException:
        options.pop()
        raise
    try:
        yield
    finally:
        options.pop()  # first: the mode that is entered again may be Debug
        mode.__exit__(None, None, None)
