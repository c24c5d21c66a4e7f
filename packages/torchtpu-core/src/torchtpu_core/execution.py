# SPDX-License-Identifier: Apache-2.0
"""What an execution mode is; the modes themselves are plugins (`torchtpu-eager`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Observer(Protocol):
    """Sees every op before and after it ran."""

    def before(self, op: str, args: Sequence[Any]) -> Any:
        """Called with the overload's name and its arguments; returns a token."""

    def after(self, token: Any, results: Sequence[Any]) -> None:
        """Called with the token and the op's results, which are computed."""

    def failed(self, token: Any, error: BaseException) -> None:
        """Called instead of `after` with what the op raised; may raise something clearer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMode:
    """When recorded ops run.

    Attributes:
        name: ``strict``, ``debug``, ``fused``, or a plugin's own.
        flush_each: run each op when it is called.
        synchronous: wait for each op and raise its errors at once.
        observer: makes the object that watches every op, or None.
        entered: called each time the mode comes into force.
    """

    name: str
    flush_each: bool = True
    synchronous: bool = False
    observer: Callable[[], Observer] | None = None
    entered: Callable[[], None] | None = None


def user_line() -> str:
    """``file.py:12 in train``: the caller's line, or in backward the forward op's; or ``""``."""
    from torchtpu_core import _C

    return str(_C.user_line())
