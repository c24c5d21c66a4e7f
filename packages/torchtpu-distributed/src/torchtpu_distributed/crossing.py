# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other in a circle, as those that use two groups crosswise.

A rank shows on the board for which rank it waits. Whoever follows that from rank to rank and comes
to itself is in a circle. It is proved to last for ever if at one moment every rank of it is in its
wait and has no thread that could still call what another one waits for: then the job fails at once,
and otherwise when the time is up. Messages, and collectives that their callers do not wait for, are
left to the timeout: what they need may be on its way.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torchtpu_distributed import active
from torchtpu_distributed.board import Board
from torchtpu_distributed.ledger import Ledger
from torchtpu_distributed.pending import Pending

#: How long a collective must have waited before a rank shows for whom.
_SHOWN_AFTER_S = 2.0
#: A rank whose heart has beaten so often since has looked, after the first beat, at what it does.
_BEATS = 2
#: Threads that call no collectives: this project's, and some that wait for what others give them.
_HELPERS = ("tpu_dist", "torchtpu-", "tqdm_monitor", "QueueFeederThread")

_Circle = list[tuple[int, dict[str, Any]]]


class Crossing:
    """Looks for circles, for the watch of one rank.

    Args:
        board: where ranks show for whom they wait.
        rank: this rank.
        ledger: what is under way here.
        is_late: whether a rank has not come to a collective.
    """

    def __init__(
        self, board: Board, rank: int, ledger: Ledger, is_late: Callable[[int, Pending], bool]
    ) -> None:
        self._board, self._rank, self._ledger, self._is_late = board, rank, ledger, is_late
        self._before: tuple[list[tuple[int, int]], dict[int, int]] = ([], {})

    def own_wait(self, waits: Sequence[Pending]) -> dict[str, Any] | None:
        """For which rank this one waits, for the board; None if it does not, or not for long.

        Args:
            waits: what is under way, oldest first.
        """
        numbered = [each for each in waits if each.seq and each.kind and not each.message]
        if not numbered or time.monotonic() - numbered[0].began_s < _SHOWN_AFTER_S:
            return None
        first = numbered[0]
        late = (r for r in first.ranks if r != self._rank and self._is_late(r, first))
        rank = next(late, None)
        if rank is None:
            return None
        is_stuck = len(waits) == 1 and self._is_waited_for() and _is_alone()
        return {"id": first.record_id, "name": first.name, "for": rank, "stuck": is_stuck}

    def proof(self) -> str:
        """The message about a circle that nothing will end; empty if none is proved."""
        before, beats = self._before
        now = self._board.beats(rank for rank, _ in before)
        circle = self._circle()
        ids = [(rank, wait["id"]) for rank, wait in circle]
        if not all(wait["stuck"] for _, wait in circle) or not ids:
            self._before = ([], {})
            return ""
        if ids != before:
            self._before = (ids, self._board.beats(rank for rank, _ in ids))
            return ""
        if any(now.get(rank, 0) < beats[rank] + _BEATS for rank, _ in ids):
            return ""
        return (
            f"The ranks wait for each other, and none can go on:{_listed(circle)}\nRanks that "
            "share several groups must call the collectives of all of them in one order."
        )

    def words(self) -> str:
        """The circle this rank is in, for the end of a message; empty if it is in none."""
        circle = self._circle()
        return f"\nThe ranks wait for each other:{_listed(circle)}" if circle else ""

    def _circle(self) -> _Circle:
        """The ranks of the circle from the lowest one on, with what each waits in."""
        circle: _Circle = []
        rank = self._rank
        while rank not in (known for known, _ in circle):
            wait = self._board.waits_for(rank)
            if wait is None:
                return []
            circle.append((rank, wait))
            rank = wait["for"]
        if rank != self._rank:
            return []
        lowest = min(range(len(circle)), key=lambda i: circle[i][0])
        return circle[lowest:] + circle[:lowest]

    def _is_waited_for(self) -> bool:
        """Whether what is under way keeps its caller: XLA's programs do not."""
        by_gloo = active.world is not None and active.world.by_gloo
        idle_behind = self._ledger.operations.idle() and not self._ledger.in_flight.count.value
        return by_gloo and idle_behind


def _is_alone() -> bool:
    """Whether the thread that waits is the only one that may call collectives.

    One of autograd's has a frame of Python while it runs a hook; idle ones have none.
    """
    helpers = {t.ident for t in threading.enumerate() if t.name.startswith(_HELPERS)}
    return len(sys._current_frames().keys() - helpers - {threading.get_ident()}) == 1


def _listed(circle: _Circle) -> str:
    return "".join(
        f"\n  rank {rank} waits for rank {wait['for']} in {wait['name']}" for rank, wait in circle
    )
