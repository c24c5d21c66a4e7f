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
    """``file.py:12 in train``: the caller's, or ``backward of`` the forward op's; or ``""``."""
    from torchtpu_core import _C

    return str(_C.user_line())


def set_fusion_policy(
    *,
    background: bool,
    sightings: int,
    at_first_sight: int,
    patience: int,
    max_ops: int,
    max_held_bytes: int,
) -> None:
    """How a mode that does not flush each op cuts the stream of ops into programs.

    Args:
        background: compile on a thread of its own while ops run one by one.
        sightings: how often a stream must have been met before it is compiled.
        at_first_sight: operators in a stream that is compiled although it is new, at most.
        patience: unknown streams in a row after which ops run when they are called.
        max_ops: operators in one program.
        max_held_bytes: device memory that only recorded, unfinished work may hold.
    """
    from torchtpu_core import _C

    _C.set_fusion_policy(
        background=background,
        sightings=sightings,
        at_first_sight=at_first_sight,
        patience=patience,
        max_ops=max_ops,
        max_held_bytes=max_held_bytes,
    )


def optimizer_stepped() -> None:
    """A training step has ended here: a good place to cut the stream of ops."""
    from torchtpu_core import _C

    _C.optimizer_stepped()
