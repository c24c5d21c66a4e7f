# SPDX-License-Identifier: Apache-2.0
"""Reports of what the ranks of a group call, from what each has said: see `first_calls`.

The thread that calls a collective finds a difference before it begins; the watch finds one that
another rank has brought later, also when that rank has ended before it could tell anybody.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtpu_distributed.board import Board
from torchtpu_distributed.first_calls import Difference
from torchtpu_distributed.pending import Pending

if TYPE_CHECKING:
    from torchtpu_distributed.group import Group

#: Within this time a rank shows on the board what it waits for, unless it is stopped.
_BEATS_S = 1.2
#: In how many groups a rank's calls are shown.
_SHOWN = 4


def report(group: Group, pending: Pending, found: Difference) -> str:
    """The message about a collective that another rank calls differently.

    Args:
        group: the group.
        pending: what this rank calls.
        found: what the other rank calls.
    """
    mine = f"{pending.what}{found.of_mine}"
    calls = {
        group.ranks[found.rank]: f"{found.what}{f' at {found.line}' if found.line else ''}",
        group.world.rank: f"{mine}{f' at {pending.line}' if pending.line else ''}",
    }
    for rank in group.ranks:
        if rank not in calls:
            number, name = reached(group, rank, pending.seq)
            calls[rank] = name if number else "(none of its calls is known yet)"
    listed = "".join(f"\n  rank {rank}: {calls[rank]}" for rank in sorted(calls))
    return (
        f"Collective number {pending.seq} of group {group.name!r} differs between ranks; rank "
        f"{group.world.rank} noticed it:{listed}\nAll ranks of a group must "
        "call the same collectives in the same order, with the same shapes, dtypes and "
        "reduction. The first line that should not be there, or is missing, is the cause."
        f"{parting(group, pending.seq - 1)}"
    )


def of_pending(group: Group, pending: Pending) -> Difference | None:
    """What another rank is known to call instead of a collective under way."""
    calls = group.known_calls
    return calls.difference(pending.seq, pending.call) if calls is not None else None


def left_out(
    groups: Iterable[Group],
    does: str = "ends, or destroys its process group,",
    *,
    or_failed: bool = False,
) -> str:
    """The message about a collective that another rank waits in, and this one will not come to.

    Empty if none is known.

    Args:
        groups: those in which this rank calls no collective any more.
        does: why it does not.
        or_failed: whether the other one may have failed meanwhile.
    """
    return next(filter(None, (_left_out(each, does, or_failed) for each in list(groups))), "")


def _left_out(group: Group, does: str, or_failed: bool) -> str:
    found = group.known_calls.after(group.seq) if group.known_calls is not None else None
    if found is None or not _waits(group, group.ranks[found.rank], or_failed):
        return ""
    _number, last = reached(group, group.world.rank, group.seq)
    return (
        f"rank {group.world.rank} {does} and has not come to "
        f"{found.name}, number {group.seq + 1} of group {group.name!r}, which rank "
        f"{group.ranks[found.rank]} has called. The last one this rank has come to was "
        f"{last or 'none'}. All ranks of a group must call the same collectives in the same "
        f"order.{parting(group, group.seq)}"
    )


def _waits(group: Group, rank: int, or_failed: bool) -> bool:
    """Whether a rank waits for others, by its next heartbeat: it may have given up since."""
    board = Board(group.world.store, group.world.rank)

    def has_failed() -> bool:
        return or_failed and bool(board.failed_in(rank))

    last, deadline = board.beats([rank]), time.monotonic() + _BEATS_S
    while not has_failed() and board.beats([rank]) == last and time.monotonic() < deadline:
        time.sleep(_BEATS_S / 20)
    return bool(board.waits_in(rank)) or has_failed()


def reached(group: Group, rank: int, about: int) -> tuple[int, str]:
    """Number and name of the last collective that a rank has said it calls; 0 if unknown.

    Args:
        group: the group.
        rank: its number in the world.
        about: a number near which to look; 0 for that of this rank's last one.
    """
    if group.known_calls is None:
        return 0, ""
    number, call = group.known_calls.last(group.ranks.index(rank), about or group.seq)
    return number, call and f"{call}, number {number} of group {group.name!r}"


def ahead(groups: Iterable[Group], rank: int) -> str:
    """What a rank has called and this one has not, for a message about a rank that is waited for.

    A rank that left out a collective of one group may have gone on to one of another group. Empty
    if nothing is known.

    Args:
        groups: those to look at; a rank need not belong to all of them.
        rank: its number in the world.
    """
    found = [name for group in groups if rank in group.ranks and (name := _next(group, rank))]
    called = "; ".join(found[:_SHOWN])
    return f" Rank {rank} has called what this rank has not come to: {called}." if called else ""


def _next(group: Group, rank: int) -> str:
    """The first collective of a group that a rank has called after this rank's last one."""
    calls, number = group.known_calls, group.seq + 1
    name = calls.call(group.ranks.index(rank), number) if calls is not None else ""
    return name and f"{name}, number {number} of group {group.name!r}"


def parting(group: Group, last: int) -> str:
    """Where ranks first came to one collective from different lines, for the end of a message.

    A rank that has left out a collective differs there first: it may go on for long with calls
    that fit those of the others. Empty if no such place is known.

    Args:
        group: the group.
        last: number of the last collective to look at.
    """
    found = group.known_calls.parting(last) if group.known_calls is not None else None
    if found is None:
        return ""
    number, calls = found
    listed = "".join(f"\n  rank {group.ranks[i]}: {calls[i]}" for i in sorted(calls))
    return (
        f"\nBefore that the ranks had come to number {number} of group {group.name!r} from "
        f"different lines, for the first time that is known:{listed}"
    )
