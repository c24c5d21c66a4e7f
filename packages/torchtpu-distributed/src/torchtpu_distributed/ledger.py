# SPDX-License-Identifier: Apache-2.0
"""The collectives under way in this process, and the waits on them.

XLA may run a collective inside the call that launches it, and that call returns only
when all ranks have come or the transport gives up. So no thread of the user's ever
makes it: one thread launches in program order, another waits for completion, and
whoever needs a result waits here, where the verdict of the watch reaches it. Works of
gloo are waited for in compiled code, which a failure ends too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from torchtpu_distributed import _C
from torchtpu_distributed.errors import CollectiveError, CollectiveMismatchError
from torchtpu_distributed.in_flight import InFlight
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.recorder import Recorder
from torchtpu_distributed.spare_threads import SpareThreads

if TYPE_CHECKING:
    from torchtpu_distributed.group import Group

T = TypeVar("T")

#: Longest nap of a wait whose condition nobody announces, such as an array becoming ready.
_NAP_S = 0.02
_FIRST_NAP_S = 0.0002
#: How long the watch may need to say which rank is behind an error.
_VERDICT_S = 15.0
#: How long the store may be silent, if somebody has waited for long enough.
_ANSWER_S = 5.0

#: Backends of gloo with a thread that waits for a lost rank: to destroy one is to join it.
#: And what such threads may use.
_stuck: list[Any] = []


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the collectives of this process have ended.

    `lost` is the rank whose end is the cause, if one's is.
    """

    kind: type[CollectiveError]
    message: str
    lost: int | None = None

    def error(self) -> CollectiveError:
        """A new exception; several threads may need one each."""
        return self.kind(self.message)


class _Launch:
    """A program to launch, and then its results."""

    def __init__(self, pending: Pending, call: Callable[[], Sequence[Any]]) -> None:
        self.pending = pending
        self._call = call
        self.results: Sequence[Any] = ()

    def make(self) -> None:
        """Make the call that blocks."""
        self.results = self._call()


class Ledger:
    """All pending collectives of a process and the two threads that drive them.

    Attributes:
        failure: why no collective can be started any more.
        seen: whether a thread of the user's has been told.
        hit: whether a collective was under way then, or ranks differ. A rank that has done all
            may see that its store, or another rank, has gone before it.
        failed_in: name of the oldest collective under way then.
        records: those that are under way, and the ring of the recorder.
        recorder: the last collectives, finished ones included.
        in_flight: memory that asynchronous collectives of Python's use.
        operations: asynchronous collectives of compiled code.
        groups: the process groups by name, while they exist.
        threads: where to make calls that may wait for other ranks.
        abort: set with the first failure; ends waits in compiled code.
        stuck: whether a thread of gloo's waits for a rank that will not come.
        on_trouble: called when the transport fails.
        on_failure: called once, when the first failure has been noted.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._launches: queue.SimpleQueue[_Launch | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[tuple[Pending, Any] | None] = queue.SimpleQueue()
        self.failure: Failure | None = None
        self.seen = False
        self.hit = False
        self.failed_in = ""
        self.recorder = Recorder()
        self.records = self.recorder.records
        self.in_flight = InFlight()
        self.operations = _C.Operations()
        self.groups: WeakValueDictionary[str, Group] = WeakValueDictionary()
        self.abort = _C.Abort()
        self.stuck = False
        self.on_trouble: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self._met: dict[str, str] = {}
        self.threads = SpareThreads()
        self.threads.run(self._launch_all)
        self.threads.run(self._complete_all)

    def begin(self, pending: Pending) -> None:
        """Enter a collective, once; raises if an earlier one has failed."""
        self.check()
        self.records.begin(pending)

    def positions(self) -> dict[str, tuple[int, str]]:
        """Number and name of the last collective of each group; 0 if it has only met."""
        met = {group: (0, name) for group, name in list(self._met.items())}
        called = self.records.positions().items()
        return met | {group: (last.seq, last.name) for group, last in called}

    def run(self, pending: Pending, call: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Launch a collective in order; its results, the last of which is its token.

        Raises:
            CollectiveError: it cannot finish.
        """
        launch = _Launch(pending, call)
        self._launches.put(launch)
        self.wait_until(lambda: pending.launched)
        return launch.results

    def run_here(self, pending: Pending, call: Callable[[], Any]) -> None:
        """Make a call that blocks, in a thread that has nothing else to do."""
        try:
            call()
        except Exception as error:
            self.report(pending, error)
            return
        with self._condition:
            pending.launched_s = time.monotonic()
            self._condition.notify_all()

    def meet(self, pending: Pending, connect: Callable[[], T]) -> T:
        """Connect the ranks of a group, in a thread of its own: this wait for them can be ended.

        Args:
            pending: stands for it; other ranks see that this one has come.
            connect: makes the connection, and blocks.

        Raises:
            CollectiveError: a rank is lost or late, or the connection cannot be made.
        """
        self._met[pending.group] = pending.name
        self.begin(pending)
        try:
            return self.run_apart(pending, connect)
        finally:
            self.give_up(pending)

    def run_apart(self, pending: Pending, call: Callable[[], T]) -> T:
        """The result of a call that blocks, made in another thread.

        Raises:
            CollectiveError: it has failed, or the job has.
        """
        made: list[T] = []
        over = threading.Event()

        def make() -> None:
            try:
                made.append(call())
            except (RuntimeError, OSError) as error:
                self.report(pending, error)
            finally:
                over.set()
                self.announce()

        self.threads.run(make)
        try:
            self.wait_until(over.is_set)
        except BaseException:  # Ctrl-C too
            self.stuck = True
            raise
        if not made:
            self.wait_for_verdict()
            raise CollectiveError(f"{pending.name}: {pending.trouble}")
        return made[0]

    def finish(self, pending: Pending) -> None:
        """Leave a collective that is done."""
        pending.done_s = time.monotonic()
        self.give_up(pending)

    def give_up(self, pending: Pending) -> None:
        """Leave a collective, done or not."""
        self.records.end(pending)
        self.announce()

    def fail(self, failure: Failure) -> None:
        """End all collectives of this process; the first failure is the one that counts."""
        with self._condition:
            first, self.failure = self.failure is None, self.failure or failure
            differs = failure.kind is CollectiveMismatchError  # with what this rank has done
            self.hit = self.hit or differs or not self.records.idle()
            if first and (pending := self.pending()):
                self.failed_in = pending[0].name
            self.abort.set()
            self._condition.notify_all()
        if self.operations.abandon(self.failure.error):
            self.stuck = True
        if first:
            self.on_failure()

    def close(self, failure: Failure) -> None:
        """Let nothing begin any more, in a process that lacks the threads of this one."""
        self._condition = threading.Condition()  # such a thread may have held the old one
        self.failure, self.seen = failure, True
        self.abort.set()

    def launched(self, pending: Pending) -> None:
        """Note that a collective has begun on this rank."""
        pending.launched_s = time.monotonic()

    def announce(self) -> None:
        """Let everybody who waits here look again."""
        with self._condition:
            self._condition.notify_all()

    def wait_for_works(self, works: Sequence[Any], gloo: Any) -> None:
        """Wait for works of a gloo backend.

        Raises:
            CollectiveError: the job has failed meanwhile.
            RuntimeError: gloo has.
        """
        if not _C.wait_for(works, self.abort):
            self.leave_stuck(gloo)
            self.check()

    def leave_stuck(self, gloo: Any) -> None:
        """Keep a gloo backend whose threads may wait for ever, and end the process without it."""
        self.stuck = True
        _stuck.append(gloo)

    def keep(self, memory: Any) -> None:
        """Never free what a thread of gloo's may still use after a failure."""
        _stuck.append(memory)

    def wait_for_verdict(self) -> None:
        """Give the watch time to say which rank is behind an error; returns if it does not.

        Raises:
            CollectiveError: its verdict.
        """
        self.wait_until(lambda: False, _VERDICT_S)

    @contextmanager
    def verdict_on(self, kind: type[Exception]) -> Iterator[None]:
        """Raise what the watch says instead of an error of a kind, if it says anything.

        Raises:
            CollectiveError: its verdict.
        """
        try:
            yield
        except kind:
            self.wait_for_verdict()
            raise

    def check(self) -> None:
        """Raise the failure, if there is one: then a thread of the user's has seen it."""
        if self.failure is not None:
            own = _C.is_behind() or self.threads.holds_caller()
            self.seen = self.seen or not own
            raise self.failure.error()

    def pending(self) -> list[Pending]:
        """What is under way, oldest first."""
        return self.records.under_way()

    def is_overdue(self, began_s: float) -> bool:
        """Whether a call of the store that began then is to be given up.

        It is when it keeps back the verdict on a collective whose time is up, or the end of this
        process.
        """
        now_s = time.monotonic()
        if now_s - began_s < _ANSWER_S:
            return False
        if self.failure is not None or _C.sigterm_came():
            return True
        return any(now_s - each.began_s > each.timeout_s + _ANSWER_S for each in self.pending())

    def wait_until(
        self, condition: Callable[[], bool], timeout_s: float | None = None, nap_s: float = 1.0
    ) -> bool:
        """Wait for something the threads here announce; False after `timeout_s` seconds.

        What compiled code does is not announced: then `nap_s` is the time between two looks.

        Raises:
            CollectiveError: the job has failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._condition:
            while not condition():
                self.check()
                left = nap_s if deadline is None else min(nap_s, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._condition.wait(left)
        return True

    def wait_done(self, pending: Pending) -> None:
        """Wait for one collective.

        Raises:
            CollectiveError: the job has failed.
        """
        self.wait_until(lambda: pending.done)

    def wait_for(self, array: Any) -> None:
        """Wait for an array that may depend on pending collectives.

        Raises:
            CollectiveError: one of them cannot finish.
        """
        for pending in self.in_flight.users([id(array)]):
            self.wait_done(pending)
        if not self.operations.idle() and array.is_ready():
            self.operations.wait_for_memory(array.unsafe_buffer_pointer(), array.nbytes, self.abort)
        nap_s = _FIRST_NAP_S
        while not (self.records.idle() or array.is_ready()):
            self.check()
            with self._condition:
                if not self.records.idle():
                    self._condition.wait(nap_s)
            nap_s = min(2 * nap_s, _NAP_S)
        try:
            array.block_until_ready()
        except Exception:
            # if it comes from a collective, the watch will say so
            self.wait_until(self.records.idle, _VERDICT_S)
            self.check()
            raise

    def drain(self, timeout_s: float) -> bool:
        """Wait for everything under way; whether it all finished."""
        over = self.wait_until(  # without an error, which would count as told
            lambda: self.failure is not None or self.records.idle(), timeout_s, _NAP_S
        )
        return over and self.failure is None

    def stop(self, patience_s: float) -> bool:
        """End the threads after what they have; whether none is stuck."""
        self._launches.put(None)
        ended = self.threads.stop(0.0 if self.stuck else patience_s)
        return ended and not self.stuck

    def _launch_all(self) -> None:
        while self._launch_next():
            pass

    def _launch_next(self) -> bool:
        """Launch one; a function of its own so that its operands are let go at once."""
        launch = self._launches.get()
        if launch is None:
            self._launched.put(None)
            return False
        self.run_here(launch.pending, launch.make)
        if launch.pending.launched:
            self._launched.put((launch.pending, launch.results[-1]))
        return True

    def _complete_all(self) -> None:
        while (item := self._launched.get()) is not None:
            pending, token = item
            try:
                token.block_until_ready()
            except Exception as error:
                self.report(pending, error)
                continue
            finally:
                del item, token
            self.finish(pending)

    def report(self, pending: Pending, error: Exception) -> None:
        """Leave it to the watch to find out which rank is behind an error of the transport."""
        pending.trouble = f"{type(error).__name__}: {error}"
        pending.trouble_s = time.monotonic()
        self.on_trouble()
