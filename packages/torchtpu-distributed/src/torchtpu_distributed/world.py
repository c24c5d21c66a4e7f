# SPDX-License-Identifier: Apache-2.0
"""What all process groups of a process share: the joined client, the ledger, the watch.

A world begins with the default process group and ends with it. Only one exists at a
time.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import distributed as dist
from torchtpu_core.env_values import Collectives
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime.current import target
from torchtpu_core.targets import TargetKind

from torchtpu_distributed import (
    _C,
    active,
    bound,
    coordinator,
    departures,
    differences,
    joining,
    stores,
)
from torchtpu_distributed.board import Board
from torchtpu_distributed.errors import (
    CollectiveError,
    CollectiveMismatchError,
    PeerLostError,
    ProcessGroupError,
    in_words,
)
from torchtpu_distributed.joining import Joined
from torchtpu_distributed.ledger import Failure, Ledger
from torchtpu_distributed.processes import (
    Process,
    is_running,
    is_stopped,
    let_end,
    reachable_address,
    this_process,
)
from torchtpu_distributed.watch import Watch

if TYPE_CHECKING:
    from torchtpu_distributed.group import Group

#: After an error elsewhere, how long the end of the process waits for collectives.
_DRAIN_AFTER_ERROR_S = 1.0
#: How long a thread may need to come out of a collective that is over.
_STUCK_S = 2.0
#: Python tells nobody at its end which code it was to end with.
_WITHOUT_CODE = (
    "a collective of a process group that failed still waits for another rank, so that this "
    "process is ended here, with code 1, whatever the script has ended with."
)
_FORKED = (
    "this process was forked from rank {rank} and is no rank itself: only the rank calls "
    "collectives, makes groups and leaves them. Call them in the rank, and hand what this process "
    "finds to it, or start a process of its own with multiprocessing's 'spawn'."
)
#: How long a store that a process hosts outlives its failure, for ranks that read it.
_READ_S = 1.5
#: How long a rank lets the one that is lost, and runs still, end before itself.
_END_FIRST_S = 5.0
#: Time between two looks whether all ranks still run.
_LOOK_S = 0.5


@dataclass(slots=True, kw_only=True)
class World:
    """The ranks of a job, seen from one.

    Attributes:
        name: no earlier world that used the same store has it.
        rank: this rank.
        size: number of ranks.
        store: connection for calls of the user's threads.
        connections: those for calls that wait.
        timeout_s: seconds a collective may take, unless its group says otherwise.
        joined: the client that sees every rank's devices; by gloo, it sees this rank's alone.
        by_gloo: whether gloo carries collectives, on the memory of a simulated device.
        peers: every rank's process.
        ledger: collectives under way.
        watch: the thread that looks for lost ranks.
        made: how many groups that only their ranks know this rank has made, by their ranks.
        left: after the end, what the user's threads have not been told of: a collective that has
            failed, or one that other ranks have come to and this one has not.
    """

    name: str
    rank: int
    size: int
    store: stores.Answering
    connections: stores.Connections
    timeout_s: float
    joined: Joined
    by_gloo: bool
    peers: dict[int, Process]
    ledger: Ledger
    watch: Watch
    made: dict[tuple[int, ...], int] = field(default_factory=dict)
    ended: bool = False
    free: bool = True
    left: CollectiveError | None = None

    @property
    def address(self) -> str:
        """An address of this machine that every rank can reach."""
        return reachable_address(self.peers[self.rank], self.peers.values())

    def end(self, reason: str, drain_s: float, *, failed: bool = False) -> bool:
        """Leave the world, telling the other ranks; whether no thread waits for a lost rank.

        Args:
            reason: what the others are told.
            drain_s: how long to wait for what is under way.
            failed: whether this rank ends by an error.
        """
        if self.ended:
            return self.free
        self.ended = True
        self.ledger.drain(drain_s)
        self.watch.stop()
        self.left = self._left()
        self.free = self.ledger.stop(_STUCK_S)
        active.world = None
        _C.watch_ranges(False)
        try:
            positions, board = self.ledger.positions(), Board(self.store, self.rank)
            last = "".join(record.name for record in self.ledger.records.last()[-1:])
            failure = self.ledger.failure
            if failure is not None and failure.message not in reason:
                reason += f" after {failure.kind.__name__}: {failure.message}"
            board.post("gone", reason=reason, positions=positions, last=last)
            board.beat(positions, "", self.ledger.failed_in)  # it waits for nobody any more
            if failed or self.ledger.failure is not None or self.left is not None:
                self._let_others_read(board)
        except (RuntimeError, OSError):
            pass  # the store is gone too: there is nobody left to tell
        if self.free and self._lost() is None:  # nothing is left to do at the end of the process
            atexit.unregister(self.at_exit)
        return self.free

    def leave(self, groups: Sequence[Group], line: str) -> None:
        """Tell the ranks of a group that this one destroys it.

        Args:
            groups: the group, as device and CPU tensors know it.
            line: the user's.

        Raises:
            CollectiveMismatchError: another rank waits for this one in it.
        """
        if self.ended or self.ledger.failure is not None or groups[0].size == 1:
            return
        positions = self.ledger.positions()
        mine = {group.name: positions.get(group.name, (0, "")) for group in groups}
        left, does = departures.left(mine, line), f"destroys the process group at {line}"
        waited_for = ""
        with suppress(RuntimeError, OSError):  # the store is gone: the watch will say so
            if not left["in_error"]:
                waited_for = differences.left_out(groups, does)
            if not waited_for:
                Board(self.store, self.rank).post("left", **left)
        if waited_for:
            groups[0].fail(waited_for)

    def leave_to_parent(self) -> None:
        """Have no part in it, in a process that was forked from this rank.

        A fork has none of the rank's threads, without which no wait would end, and shares its
        connections and its place among the ranks, so that others would hear it as the rank.
        """
        atexit.unregister(self.at_exit)
        self.ended = self.free = True
        self.ledger.close(Failure(CollectiveError, _FORKED.format(rank=self.rank)))
        self.ledger.keep(list(dist.distributed_c10d._world.pg_map))  # gloo joins its threads

    def at_exit(self) -> None:
        """Tell the others why this rank ends, and end even if a thread still waits for them."""
        error: Any = getattr(sys, "last_value", None)
        reason = f"it raised {in_words(error)}" if error is not None else "it ended"
        patience_s = self.timeout_s if error is None else _DRAIN_AFTER_ERROR_S
        was_over = self.ended
        is_free = self.end(reason, patience_s, failed=error is not None)
        left = self.left if error is None and not was_over else None
        if left is not None:
            print(f"{type(left).__name__}: {left}", file=sys.stderr)
        elif error is None and not is_free:
            print(f"torchtpu: {_WITHOUT_CODE}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        lost = self._lost()
        if lost is not None:  # launchers tell of the rank that ends first, as the cause
            let_end(lost, _END_FIRST_S)
        if left is not None or not is_free:
            os._exit(1)

    def _lost(self) -> Process | None:
        """The rank whose end made this one fail."""
        failure = self.ledger.failure
        rank = failure.lost if failure is not None else None
        return self.peers[rank] if rank is not None else None

    def _let_others_read(self, board: Board) -> None:
        """Keep a store that this process hosts until the others know why it ends.

        By their second heartbeat from now they have read the board. One that ends or is stopped
        before that has no use for it.
        """
        if not stores.is_hosted_by(self.store, self.rank):
            return
        deadline = time.monotonic() + _READ_S
        others = [p for p in self.peers.values() if p.rank != self.rank]
        read = {rank: beats + 2 for rank, beats in board.beats(p.rank for p in others).items()}
        while others and time.monotonic() < deadline:
            time.sleep(_READ_S / 50)
            now = board.beats(read)
            others = [
                p
                for p in others
                if now.get(p.rank, 0) < read.get(p.rank, 0)
                and is_running(p) is not False
                and not is_stopped(p)
            ]

    def _left(self) -> CollectiveError | None:
        if self.ledger.failure is not None:
            untold = self.ledger.hit and not self.ledger.seen
            return self.ledger.failure.error() if untold else None
        try:
            message = differences.left_out(self.ledger.groups.values())
        except (RuntimeError, OSError):
            return None  # the store is gone
        return CollectiveMismatchError(message) if message else None


def start(store: dist.Store, rank: int, size: int, timeout_s: float) -> World:
    """Make the world; blocks until every rank does.

    Args:
        store: the default group's store.
        rank: this rank.
        size: number of ranks.
        timeout_s: seconds a collective may take.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        bound.end_with_parent(signal.SIGKILL)
    else:  # torch.multiprocessing.spawn does the like by itself
        bound.end_with_parent_after_all()
    late_s = time.monotonic() + timeout_s + _STUCK_S
    answering = stores.Answering(store, lambda began_s: time.monotonic() > late_s)
    try:
        stores.claim(answering, rank)
        name = stores.generation(answering, size)
        first = answering.prefixed(name)
        peers = introduce(first, rank, size, timeout_s)
        by_gloo = _is_by_gloo()
        joined = joining.alone() if by_gloo else _join(first, rank, size, peers, timeout_s)
    except dist.DistNetworkError as error:
        raise CollectiveError(
            f"the store of the process group does not answer ({type(error).__name__}: {error}), "
            f"and rank {rank} of {size} is in init_process_group(): the store's host, rank 0 or "
            "the launcher, has probably ended. Look at its output, then restart the job."
        ) from error
    ledger = Ledger()
    shared = dist.PrefixStore(name, store)
    own, watched = (stores.Answering(shared.clone(), ledger.is_overdue) for _ in range(2))
    world = World(
        name=name,
        rank=rank,
        size=size,
        store=own,
        connections=stores.Connections(shared),
        timeout_s=timeout_s,
        joined=joined,
        by_gloo=by_gloo,
        peers=peers,
        ledger=ledger,
        watch=Watch(watched, rank, peers, ledger),
    )
    _C.watch_ranges(True)
    active.world = world
    atexit.register(world.at_exit)
    return world


def _after_fork() -> None:
    if active.world is not None:
        active.world.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def _is_by_gloo() -> bool:
    chosen, on_tpu = settings().collectives, target().target.kind is TargetKind.TPU
    if chosen is Collectives.GLOO and on_tpu:
        raise ProcessGroupError(
            "TORCH_TPU_COLLECTIVES=gloo works on the memory of simulated devices, and this is a "
            "TPU: set it to auto or xla."
        )
    return chosen is Collectives.GLOO or (chosen is Collectives.AUTO and not on_tpu)


def introduce(
    store: stores.Answering, rank: int, size: int, timeout_s: float
) -> dict[int, Process]:
    """Every rank's process; blocks until all have said who they are.

    Raises:
        PeerLostError: some have not in time; it names them.
    """
    process = this_process(rank, joining.core_service(), stores.route(store))
    store.set(f"who/{rank}", process.encode())
    keys = {r: f"who/{r}" for r in range(size)}
    if not stores.wait(store, list(keys.values()), timeout_s):
        missing = [str(r) for r, key in keys.items() if not store.check([key])]
        raise PeerLostError(
            f"rank(s) {', '.join(missing)} of {size} did not come to init_process_group() in "
            f"{timeout_s:g} s. Look at their output for the cause, then restart the job."
        )
    return {r: Process.decode(store.get(key)) for r, key in keys.items()}


def _join(
    store: stores.Answering, rank: int, size: int, peers: dict[int, Process], timeout_s: float
) -> Joined:
    if size == 1 or target().target.kind is TargetKind.TPU:
        return joining.alone()
    services = {process.service for process in peers.values()}
    reusable = joining.core_client(size)
    if reusable is not None and services == {reusable.service}:
        return reusable
    if rank == 0:
        addresses = coordinator.start(reachable_address(peers[0], peers.values()), size)
        store.set("service", " ".join(addresses))
    _wait_for_all(store, peers, ["service"], timeout_s)
    service, lifeline = store.get("service").decode().split()

    def meet() -> None:
        # XLA hears no Ctrl-C while it connects, and ends the process if a rank does not come.
        store.set(f"joins/{rank}", "")
        _wait_for_all(store, peers, [f"joins/{r}" for r in peers], timeout_s)

    try:
        return joining.join(service, lifeline, rank, size, target().device_count, timeout_s, meet)
    except (CollectiveError, dist.DistNetworkError):
        raise
    except (RuntimeError, OSError) as error:
        raise _join_error(store, peers, timeout_s) from error


def _wait_for_all(
    store: stores.Answering, peers: dict[int, Process], keys: list[str], timeout_s: float
) -> None:
    """Wait for keys of the ranks.

    Raises:
        PeerLostError: they do not come in time, or a rank has ended before they did.
    """
    deadline = time.monotonic() + timeout_s
    while not stores.wait(store, keys, min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
        ended = any(is_running(process) is False for process in peers.values())
        if ended or time.monotonic() > deadline:
            raise _join_error(store, peers, timeout_s)


def _join_error(
    store: stores.Answering, peers: dict[int, Process], timeout_s: float
) -> PeerLostError:
    lost = []
    for rank, process in peers.items():
        if is_running(process) is False:
            lost.append(f"{process.name} has ended")
        elif is_stopped(process):
            lost.append(f"{process.name} is stopped (SIGSTOP, or a debugger)")
        elif not store.check([f"joins/{rank}"]):
            lost.append(f"{process.name} did not come in {timeout_s:g} s")
    return PeerLostError(
        f"the ranks could not be connected: {'; '.join(lost) or 'see above'}. "
        "Look at that rank's output for the cause, then restart the job."
    )
