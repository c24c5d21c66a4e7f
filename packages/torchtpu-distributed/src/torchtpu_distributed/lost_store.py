# SPDX-License-Identifier: Apache-2.0
"""What the watch says of a store that does not answer any more.

A store whose host has ended closes its connections; one whose host is stopped, or cut off, is
silent. A rank that happens to be stopped as well is the cause only if it is the silent host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtpu_distributed import processes, stores
from torchtpu_distributed.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from torchtpu_distributed.processes import Process
from torchtpu_distributed.stores import Answering

_STOPPED = "is stopped (SIGSTOP, or a debugger)"


def verdict(
    store: Answering,
    error: Exception,
    peers: Mapping[int, Process],
    dead: Sequence[Process],
    first_gone: str,
) -> tuple[type[CollectiveError], str, str]:
    """The kind of the failure, what has happened, and what to do.

    Args:
        store: the connection.
        error: what it has raised.
        peers: all processes by rank.
        dead: those of them that are known to have ended.
        first_gone: which rank ended first, as an end of a message.
    """
    idle = [peer for peer in peers.values() if processes.is_stopped(peer)]
    lost = f"the store of the process group does not answer ({type(error).__name__}: {error})"
    state = "is stopped" if store.is_silent else "has ended"
    why = f"its host, rank 0 or the launcher, {state}, or the network to it is cut."
    if dead:
        what = f"{_names(dead)} is gone, and {lost}; {why}{first_gone}{_besides(idle)}"
        return PeerLostError, what, "Look at its output."
    host = peers[0]
    if host in idle and store.is_silent and stores.is_hosted_by(store, 0):
        others = _besides([peer for peer in idle if peer is not host])
        what = f"{host.name} {_STOPPED}, and {lost}, which is in its process.{others}"
        return CollectiveTimeoutError, what, "Continue or end it, then restart the job."
    what = f"{lost[0].upper()}{lost[1:]}; {why}{_besides(idle)}"
    return (
        CollectiveError,
        what,
        "Look at that machine and the way to it, then restart the job.",
    )


def _besides(idle: Sequence[Process]) -> str:
    """That ranks are stopped, where something else has ended the job."""
    return f" Besides, {_names(idle)} {_STOPPED}." if idle else ""


def _names(some: Sequence[Process]) -> str:
    return ", ".join(process.name for process in some)
