# SPDX-License-Identifier: Apache-2.0
"""The ranks that have said that they end, or leave a group, and which collectives that stops.

A rank that ends speaks for all of its groups, one that destroys a subgroup for that one. Both say
what they had come to before: those collectives can finish without them. The watch hears the
notices and asks here; whether a process has ended without a word is not known here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu_distributed.errors import in_words
from torchtpu_distributed.pending import Pending

#: How long a message that a rank has sent before it went may be on its way.
UNDER_WAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What a rank has said when it went.

    Attributes:
        reason: why, for messages.
        positions: number and name of the last collective it had come to, by group.
        last: name of its last call.
        heard_s: when this rank heard of it.
        in_error: whether it went because of an error.
        ends: whether it has left all groups, not those of `positions` alone.
    """

    reason: str
    positions: dict[str, Sequence[Any]]
    last: str
    heard_s: float
    in_error: bool
    ends: bool

    @staticmethod
    def of(notice: dict[str, Any]) -> Departure:
        """What a notice of the board says."""
        return Departure(
            reason=str(notice["reason"]),
            positions=notice["positions"],
            last=str(notice.get("last", "")),
            heard_s=time.monotonic(),
            in_error=bool(notice.get("in_error")),
            ends=notice["kind"] == "gone",
        )

    def concerns(self, pending: Pending) -> bool:
        """Whether the rank has left the group of a collective."""
        return self.ends or pending.group in self.positions

    def stops(self, pending: Pending) -> bool:
        """Whether a collective cannot finish without the rank, which has not come to it."""
        if not self.concerns(pending):
            return False
        if pending.message and not pending.trouble:  # what it sent may be on its way
            since_s = max(self.heard_s, pending.began_s)
            return time.monotonic() - since_s > UNDER_WAY_S
        return not has_come(self.positions.get(pending.group, (0, "")), pending)

    def may_have_stopped(self, pending: Pending) -> bool:
        """Whether a collective to which the rank had come may have failed by its end."""
        return self.concerns(pending) and bool(pending.trouble)


class Departures:
    """What this rank has heard of the others.

    Attributes:
        ended: the ranks that end, in the order in which they said so.
    """

    def __init__(self) -> None:
        self.ended: dict[int, Departure] = {}
        self._heard: list[tuple[int, Departure]] = []

    def take(self, notice: dict[str, Any]) -> None:
        """Note a notice of the kind ``gone`` or ``left``."""
        departure = Departure.of(notice)
        self._heard.append((notice["rank"], departure))
        if departure.ends:
            self.ended[notice["rank"]] = departure

    def stopping(self, pending: Pending) -> tuple[int, Departure] | None:
        """The first rank that has gone without coming to a collective, with what it said."""
        return self._first(lambda each: each.stops(pending), pending)

    def breaking(self, pending: Pending) -> tuple[int, Departure] | None:
        """The first one that has gone, of a collective whose transport has failed."""
        return self._first(lambda each: each.may_have_stopped(pending), pending)

    def _first(
        self, condition: Callable[[Departure], bool], pending: Pending
    ) -> tuple[int, Departure] | None:
        found = ((rank, each) for rank, each in self._heard if rank in pending.ranks)
        return next((pair for pair in found if condition(pair[1])), None)


def left(positions: dict[str, tuple[int, str]], line: str) -> dict[str, Any]:
    """What a notice says of a group that this rank destroys.

    Args:
        positions: number and name of the last collective it has come to, by group; also of a
            group in which there is none.
        line: the user's.
    """
    in_error = _error() is not None
    return {"reason": destroyed(line), "positions": positions, "in_error": in_error}


def destroyed(line: str) -> str:
    """What a rank that destroys a group says of it.

    Args:
        line: the user's, if it is known.
    """
    where = f" at {line}" if line else ""
    error = _error()
    why = "" if error is None else f" after {in_words(error)}"
    return f"it destroyed the process group{where}{why}"


def _error() -> BaseException | None:
    """The exception in whose `finally`, `except` or `__exit__` the caller is."""
    return sys.exception()


def has_come(last: Sequence[Any], pending: Pending) -> bool:
    """Whether a rank has come to a collective.

    Args:
        last: number and name of the last one it came to in the group.
        pending: the collective; without a kind it is the making of the group. Of a message, or
            what gloo does with CPU tensors, nobody knows.
    """
    number, name = last
    if pending.message:
        return False
    return 0 < pending.seq <= int(number) if pending.kind else bool(name)
