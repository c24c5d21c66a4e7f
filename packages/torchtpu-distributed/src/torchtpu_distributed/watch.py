# SPDX-License-Identifier: Apache-2.0
"""The watch: a thread per process that finds out which rank keeps a collective from finishing.

It beats its own heart, reads the board, and looks after the oldest pending collective:
is a rank of its group gone, has it stopped beating, is the time up? The verdict goes
to the ledger, where the user's threads wait. It deliberately never touches arrays.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from torchtpu_distributed import _C, differences, lost_store, members, processes, recorder
from torchtpu_distributed.board import Board
from torchtpu_distributed.crossing import Crossing
from torchtpu_distributed.departures import Departure, Departures, has_come
from torchtpu_distributed.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
)
from torchtpu_distributed.ledger import Failure, Ledger
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.processes import Process
from torchtpu_distributed.stacks import main_line, main_stack
from torchtpu_distributed.stores import Answering

TICK_S = 0.5
#: A rank of another host whose heart has not beaten for so long is lost. It must be well
#: above the longest time in which a healthy process holds Python's lock.
SILENT_S = 60.0
#: How long to look for the rank behind an error of the transport.
DIAGNOSIS_S = 5.0
#: How long a late rank has to show what it is doing; never longer than the collective had.
ANSWER_S = 3.0
_BY_SIGTERM = "it was ended by SIGTERM"
#: How many of the pending collectives are looked after.
LOOK_AT = 16
#: After a failure, how long a thread may stay inside XLA before the process is ended.
LAST_RESORT_S = 30.0


class Watch:
    """The watch of one world.

    Args:
        store: a connection of its own.
        rank: this rank.
        peers: all processes of the world by rank.
        ledger: what is under way here.
    """

    def __init__(
        self, store: Answering, rank: int, peers: dict[int, Process], ledger: Ledger
    ) -> None:
        self._store, self._board = store, Board(store, rank)
        self._rank = rank
        self._peers = peers
        self._ledger = ledger
        self._departures = Departures()
        self._heard: dict[int, tuple[int, float]] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._expired: list[str] = []
        self._failed_s = 0.0
        self._crossing = Crossing(self._board, rank, ledger, self._is_late)
        ledger.on_trouble = self._wake.set
        ledger.on_failure = self._note_failure
        self._thread = threading.Thread(target=self._run, name="tpu_dist_watch", daemon=True)
        self._thread.start()
        if len(peers) > 1:
            _C.hold_sigterm()

    def stop(self) -> None:
        """End the thread, and hear what has been said since it last looked."""
        _C.release_sigterm()
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout=ANSWER_S)
        if self._ledger.failure is None and not self._thread.is_alive():
            with suppress(RuntimeError, OSError):  # the store is gone
                self._hear()
        if _C.sigterm_came():
            self._end_by_sigterm()

    def forget(self, key: str) -> None:
        """Delete a key of the store when convenient."""
        self._expired.append(key)

    def _run(self) -> None:
        tick = self._tick
        while not self._stopped:
            try:
                tick()
            except Exception as error:
                if not self._stopped:
                    self._store_lost(error)
                tick = self._stop_if_stuck  # without a store there is nothing else to do
            self._wake.wait(TICK_S)
            self._wake.clear()

    def _tick(self) -> None:
        if _C.sigterm_came():
            self._end_by_sigterm()
        waits = self._ledger.pending() if self._ledger.failure is None else []
        now = waits[0].name if waits else ""
        waits_for = self._crossing.own_wait(waits)
        self._board.beat(self._ledger.positions(), now, self._ledger.failed_in, waits_for)
        expired, self._expired = self._expired, []
        self._board.delete(expired)
        self._hear()
        if self._ledger.failure is not None:
            self._stop_if_stuck()
            return
        for pending in self._ledger.pending()[:LOOK_AT]:
            self._look_after(pending)
            if self._ledger.failure is not None:
                return
        if waits_for is not None and (message := self._crossing.proof()):
            self._board.post("mismatch", ranks=list(self._peers), message=message)
            self._fail(CollectiveMismatchError, message)

    def _hear(self) -> None:
        for notice in self._board.new_notices():
            self._take(notice)

    def _take(self, notice: dict[str, Any]) -> None:
        if notice["rank"] == self._rank:
            return
        if notice["kind"] in ("gone", "left"):
            self._departures.take(notice)
        elif notice["kind"] == "mismatch" and self._rank in notice["ranks"]:
            self._fail(CollectiveMismatchError, notice["message"])
        elif notice["kind"] == "stack":
            self._board.put_stack(main_stack())

    def _find_difference(self, pending: Pending) -> bool:
        """Fail if another rank calls something else, which it may have begun to after this one."""
        group = self._ledger.groups.get(pending.group)
        found = differences.of_pending(group, pending) if group and pending.seq else None
        if group is None or found is None:
            return False
        self._fail(CollectiveMismatchError, differences.report(group, pending, found))
        return True

    def _look_after(self, pending: Pending) -> None:
        if self._find_difference(pending):
            return
        others = [rank for rank in pending.ranks if rank != self._rank]
        if self._is_stopped(others, pending):
            return
        if pending.trouble:
            if time.monotonic() - pending.trouble_s > DIAGNOSIS_S:
                self._fail_for_trouble(others, pending)
            return
        if time.monotonic() - pending.began_s > pending.timeout_s:
            self._fail(CollectiveTimeoutError, self._late_message(others, pending))

    def _fail_for_trouble(self, others: list[int], pending: Pending) -> None:
        message = f"{pending.name}: the transport failed ({pending.trouble})."
        peers = [self._peers[rank] for rank in others]
        stopped = [peer.name for peer in peers if processes.is_stopped(peer)]
        if not stopped:
            self._fail(CollectiveError, message)
            return
        message += f" {', '.join(stopped)} is stopped (SIGSTOP, or a debugger)."
        self._fail(CollectiveTimeoutError, message)

    def _is_stopped(self, others: list[int], pending: Pending) -> bool:
        """Fail if a collective cannot finish because a rank has gone: the first one that did."""
        found = self._departures.stopping(pending)
        if found is None:
            for rank in others:
                reason = "" if rank in self._departures.ended else self._why_lost(rank)
                if not reason:
                    continue
                self._hear()  # it may have spoken since the last time, and ended
                if rank not in self._departures.ended:
                    self._fail(PeerLostError, self._lost_message(rank, reason, pending), rank)
                    return True
            found = self._departures.stopping(pending) or self._departures.breaking(pending)
        if found is None:
            return False
        rank, departure = found
        if departure.ends or departure.in_error:
            self._fail(PeerLostError, self._lost_message(rank, departure.reason, pending), rank)
        else:
            message = self._left_message(rank, departure, pending)
            self._board.post("mismatch", ranks=list(pending.ranks), message=message)
            self._fail(CollectiveMismatchError, message)
        return True

    def _why_lost(self, rank: int) -> str:
        running = processes.is_running(self._peers[rank])
        if running is None:
            return self._why_silent(rank)
        return "" if running else "its process ended without a word, as one that is killed does"

    def _why_silent(self, rank: int) -> str:
        beat = self._board.beats([rank]).get(rank, 0)
        now = time.monotonic()
        last, since = self._heard.get(rank, (0, now))
        if beat != last or rank not in self._heard:
            self._heard[rank] = (beat, now)
            return ""
        return f"its heart has not beaten for {SILENT_S:g} s" if now - since > SILENT_S else ""

    def _lost_message(self, rank: int, reason: str, pending: Pending) -> str:
        number, name = self._position(rank, pending)
        last = f" The last one it is known to have come to was {name}." if number else ""
        ended = self._departures.ended.get(rank)
        if pending.message and ended is not None and ended.last:  # messages have no common number
            last = f" The last one it has called was {ended.last}."
        last += self._ahead(rank)
        return (
            f"{self._peers[rank].name} is gone: {reason}. {pending.name}, cannot finish without "
            f"it.{last} Look at that rank's output for the cause, then restart the job."
            f"{self._parting(pending)}"
        )

    def _left_message(self, rank: int, departure: Departure, pending: Pending) -> str:
        number, name = self._position(rank, pending)
        last = f" Its last one there was {name}." if number else ""
        return (
            f"{self._peers[rank].name} is not in the group any more: {departure.reason}. "
            f"{pending.name}, which rank {self._rank} has called, cannot finish without it.{last} "
            "All ranks of a group must call the same collectives before they destroy it."
            f"{self._parting(pending)}"
        )

    def _late_message(self, others: list[int], pending: Pending) -> str:
        self._board.post("stack")
        self._board.put_stack(main_stack())  # the others may ask too, while this one waits
        deadline = time.monotonic() + min(ANSWER_S, pending.timeout_s)
        late = [rank for rank in others if self._is_late(rank, pending)]
        while time.monotonic() < deadline and not all(map(self._has_answered, late)):
            time.sleep(TICK_S / 5)
        who = self._who_is_late(others, pending) or _nobody_is_late(pending)
        return (
            f"{pending.name}: Timed out after {pending.timeout_s:g} s: {who}. Raise timeout= of "
            "init_process_group or TORCH_TPU_COLLECTIVE_TIMEOUT_S if it only needed longer."
            f"{self._crossing.words()}{self._parting(pending)}"
        )

    def _who_is_late(self, others: list[int], pending: Pending) -> str:
        """The ranks that have not come to a collective, or are stopped; empty if there is none."""
        late = [rank for rank in others if self._is_late(rank, pending)]
        parts = [self._late_rank(rank, pending) for rank in late[:8]]
        parts += [
            f"{self._peers[rank].name} had come, and is stopped now (SIGSTOP, or a debugger) "
            f"after {self._position(rank, pending)[1]}"
            for rank in others
            if rank not in late and processes.is_stopped(self._peers[rank])
        ]
        return "; ".join(parts)

    def _parting(self, pending: Pending) -> str:
        group = self._ledger.groups.get(pending.group)
        return differences.parting(group, pending.seq) if group and pending.seq else ""

    def _has_answered(self, rank: int) -> bool:
        """Whether a rank has shown where it is, or cannot."""
        return bool(self._board.stack(rank)) or processes.is_stopped(self._peers[rank])

    def _position(self, rank: int, pending: Pending) -> tuple[int, str]:
        """Number and name of the last one a rank came to in the group of a collective."""
        told = self._board.position(rank, pending.group)  # with its last beat
        group = self._ledger.groups.get(pending.group)
        known = differences.reached(group, rank, pending.seq) if group is not None else (0, "")
        return known if known[0] > told[0] else told

    def _is_late(self, rank: int, pending: Pending) -> bool:
        return not has_come(self._position(rank, pending), pending)

    def _late_rank(self, rank: int, pending: Pending) -> str:
        number, name = self._position(rank, pending)
        last = f"its last one was {name}" if number else "none is known of this group"
        elsewhere = self._board.waits_in(rank)
        if processes.is_stopped(self._peers[rank]):
            last += "; it is stopped (SIGSTOP, or a debugger)"
        elif elsewhere:  # what one that is stopped has shown may be over
            last += f"; it waits in {elsewhere}"
        elif failed_in := self._board.failed_in(rank):
            last += f"; it failed in {failed_in}"
        if members.OF_A_MESH in pending.what:
            last += "; it never will if its device mesh has another shape"
        stack = self._board.stack(rank)
        shown = f"; it is at:\n{stack}" if stack else ""
        return f"{self._peers[rank].name} has not come to it ({last}){shown}"

    def _end_by_sigterm(self) -> None:
        """Say what this rank waits for, or others for it, and end as the signal asks."""
        with suppress(RuntimeError, OSError):  # the store is gone
            self._hear()
            self._board.post("gone", reason=_BY_SIGTERM, positions=self._ledger.positions())
        failure, pending = self._ledger.failure, self._ledger.pending()
        words = ""
        if failure is None:
            words = self._waits_in(pending[0]) if pending else self._has_missed()
            self._note_failure()
        elif self._ledger.hit and not self._ledger.seen:
            words = f"{failure.kind.__name__}: {failure.message}"
        if words:
            print(words, file=sys.stderr)
        sys.stderr.flush()
        _C.end_by_sigterm()

    def _waits_in(self, first: Pending) -> str:
        others = [rank for rank in first.ranks if rank != self._rank]
        try:
            late = self._who_is_late(others, first)
        except RuntimeError as error:  # the store
            late = f"the store of the process group does not answer ({error})"
        if others and not late:  # it is under way
            return ""
        return (
            f"torchtpu: rank {self._rank} is ended by SIGTERM and waits in {first.name}: "
            f"{late or _nobody_is_late(first)}.{self._parting(first)}"
        )

    def _has_missed(self) -> str:
        does = f"is ended by SIGTERM at {main_line() or 'an unknown line'}"
        try:
            missed = differences.left_out(self._ledger.groups.values(), does, or_failed=True)
        except RuntimeError:  # the store
            return ""
        return missed and f"torchtpu: {missed}"

    def _store_lost(self, error: Exception) -> None:
        dead = processes.dead_within(TICK_S, self._peers.values())
        pending = self._ledger.pending()
        if any(self._find_difference(each) for each in pending[:LOOK_AT]):
            return
        stopped, parting = "", ""
        if pending:
            last = "".join(self._last_calls(rank, pending[0]) for rank in pending[0].ranks[:8])
            stopped = f" {pending[0].name}, cannot finish.{last}"
            parting = self._parting(pending[0])
        kind, what, advice = lost_store.verdict(
            self._store, error, self._peers, dead, self._first_gone()
        )
        self._fail(kind, f"{what}{stopped} {advice}{parting}")

    def _first_gone(self) -> str:
        """The rank that said first that it ends, which may have made the others end."""
        for rank, ended in self._departures.ended.items():
            return f" The first to go was {self._peers[rank].name}: {ended.reason}."
        return ""

    def _last_calls(self, rank: int, pending: Pending) -> str:
        """What a rank called last in the group of a collective, and what it went on to."""
        if rank == self._rank:
            return ""
        group = self._ledger.groups.get(pending.group)
        number, name = differences.reached(group, rank, pending.seq) if group else (0, "")
        last = f" The last one rank {rank} is known to have come to was {name}." if number else ""
        return f"{last}{self._ahead(rank)}"

    def _ahead(self, rank: int) -> str:
        return differences.ahead(list(self._ledger.groups.values()), rank)

    def _fail(self, kind: type[CollectiveError], *what: Any) -> None:
        self._ledger.fail(Failure(kind, *what))

    def _note_failure(self) -> None:
        """Whoever found the failure: start the clock of the last resort, keep the evidence."""
        self._failed_s = time.monotonic()
        try:
            path = recorder.write_if_asked(self._ledger.recorder, self._rank)
        except OSError as error:
            print(f"torchtpu: the flight recorder could not be written: {error}", file=sys.stderr)
            return
        if path:
            print(f"torchtpu: wrote the flight recorder of this rank to {path}", file=sys.stderr)

    def _stop_if_stuck(self) -> None:
        """End the process if the user's thread did not come out of XLA to see the failure."""
        if _C.sigterm_came():
            self._end_by_sigterm()
        failure = self._ledger.failure
        if failure is None or self._ledger.seen or not self._ledger.pending():
            return
        if time.monotonic() - self._failed_s > LAST_RESORT_S:
            print(f"{failure.kind.__name__}: {failure.message}", file=sys.stderr, flush=True)
            os._exit(1)


def _nobody_is_late(pending: Pending) -> str:
    if len(pending.ranks) == 1:
        return "it receives from itself, and has not sent the message"
    return "all ranks had come, but the data did not arrive"
