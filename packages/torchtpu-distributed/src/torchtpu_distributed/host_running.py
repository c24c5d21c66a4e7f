# SPDX-License-Identifier: Apache-2.0
"""Running collectives of a simulated device by gloo, on the device's own memory.

A synchronous collective runs in the thread that calls it; asynchronous ones run in a
thread of the group, one after another, and the next synchronous one waits for them, so
that all ranks of a group keep one order. Every wait here ends when the job has failed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core import calls as core_calls

from torchtpu_distributed import pricing
from torchtpu_distributed.calls import Collective
from torchtpu_distributed.device_memory import Source, Target, storage_key
from torchtpu_distributed.errors import CollectiveError
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_collectives import Begun, Gloo
from torchtpu_distributed.pending import Operand, Pending
from torchtpu_distributed.work import DeviceWork, QueuedWork


@dataclass(frozen=True, slots=True)
class _Known:
    """What is the same for every run of a collective."""

    what: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    device_time_ps: int


class HostRunner:
    """Runs the collectives of one group.

    Args:
        group: the group.
        connect: makes the gloo backend that they use; blocks until all ranks do.
    """

    def __init__(self, group: Group, connect: Callable[[], dist.ProcessGroupGloo]) -> None:
        self._group = group
        self._connect = connect
        self._gloo: Gloo | None = None
        self._known: dict[Any, _Known] = {}
        self._order = threading.RLock()
        self._queue_lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = False

    def run(
        self,
        call: Collective,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        *,
        keep: bool = True,
        later: bool = False,
    ) -> DeviceWork:
        """Run a collective on tensors of the device.

        Args:
            call: the collective; its shapes are those of `results`.
            operands: what this rank puts in, on one device.
            results: tensors that get the results.
            keep: whether this rank is one that gets them.
            later: whether it may run on while the caller does something else.

        Raises:
            CollectiveError: it cannot run, or an earlier one has failed.
        """
        group, ledger = self._group, self._group.world.ledger
        ledger.check()
        if all(tensor.numel() == 0 for tensor in operands):
            return DeviceWork(None, ledger, list(results))
        device = operands[0].get_device()
        group.use_device(device)
        known = self._know(call, operands, results)
        with self._order:
            keys = {storage_key(t) for t in (*operands, *results)}
            for earlier in ledger.in_flight.users(keys):
                ledger.wait_done(earlier)
            pending = self._begin(call, known)
            try:
                sources, targets = _memory(call, operands, results, group.rank, keep)
            except BaseException:
                ledger.give_up(pending)
                raise
            core_calls.add_device_time(device, known.device_time_ps)

            def begin(gloo: Gloo) -> Begun:
                function = getattr(gloo, call.kind)
                inward = [source.view() for source in sources]
                fill = call.kind == "all_reduce"
                outward = [target.filled() if fill else target.view() for target in targets]
                begun: Begun = function(call, inward, outward)
                return begun

            if not later or any(target.array is None for target in targets):
                self.wait_idle()
                self.perform(pending, begin)
                for target in targets:
                    target.finish()
                return DeviceWork(pending, ledger, list(results))
            keys |= {id(target.array) for target in targets}
            ledger.in_flight.add(keys, pending)
            work = QueuedWork(pending, ledger, list(results), (sources, targets))
            self._enqueue(pending, begin, work)
            return work

    def wait_idle(self) -> None:
        """Wait until no asynchronous collective of the group is under way.

        Raises:
            CollectiveError: the job has failed.
        """
        if self._busy:
            self._group.world.ledger.wait_until(lambda: not self._busy)

    def perform(self, pending: Pending, begin: Callable[[Gloo], Begun]) -> None:
        """Make sure all ranks call the same, and run it in this thread.

        Args:
            pending: the collective, entered into the ledger.
            begin: starts it.

        Raises:
            CollectiveError: it cannot finish.
        """
        ledger = self._group.world.ledger
        try:
            self._group.agree(pending)
            gloo = self._connected(pending)
            works, end = begin(gloo)
            ledger.launched(pending)
            ledger.wait_for_works(works, gloo.backend)
            end()
        except CollectiveError:
            ledger.give_up(pending)
            raise
        except (RuntimeError, OSError) as error:
            self._fail(pending, error)
        except BaseException:
            ledger.leave_stuck(self._gloo)
            ledger.give_up(pending)
            raise
        ledger.finish(pending)

    def _fail(self, pending: Pending, error: Exception) -> None:
        """Let the watch find out which rank is behind an error, and raise that."""
        ledger = self._group.world.ledger
        ledger.leave_stuck(self._gloo)
        ledger.report(pending, error)
        try:
            ledger.wait_for_verdict()
        finally:
            ledger.give_up(pending)
        raise error

    def _begin(self, call: Collective, known: _Known) -> Pending:
        return self._group.pending(
            known.what,
            core_calls.user_line(),
            kind=call.kind,
            inputs=known.inputs,
            outputs=known.outputs,
        )

    def _know(
        self, call: Collective, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> _Known:
        inputs = tuple((t.dtype, tuple(t.shape)) for t in operands)
        key = (call, inputs)
        found = self._known.get(key)
        if found is None:
            nbytes = sum(t.nbytes for t in operands)
            found = self._known[key] = _Known(
                what=call.describe(inputs),
                inputs=inputs,
                outputs=tuple((t.dtype, tuple(t.shape)) for t in results),
                device_time_ps=pricing.device_time_ps(call.kind, nbytes, self._group),
            )
        return found

    def _connected(self, pending: Pending) -> Gloo:
        """The group's connections, made at its first collective; that wait can end too."""
        ledger = self._group.world.ledger
        if self._gloo is None:
            made: list[dist.ProcessGroupGloo] = []
            connecting = threading.Event()

            def connect() -> None:
                try:
                    made.append(self._connect())
                except RuntimeError as error:
                    ledger.report(pending, error)
                finally:
                    connecting.set()
                    ledger.announce()

            ledger.spawn(connect)
            ledger.wait_until(connecting.is_set)
            if not made:
                ledger.wait_for_verdict()
                raise CollectiveError(f"{pending.name}: {pending.trouble}")
            self._gloo = Gloo(made[0])
        return self._gloo

    def _enqueue(self, pending: Pending, begin: Callable[[Gloo], Begun], work: QueuedWork) -> None:
        def job() -> None:
            ledger = self._group.world.ledger
            try:
                self.perform(pending, begin)
            except Exception as error:
                work.fail(error)
            finally:
                ledger.in_flight.remove(pending)
            work.complete()

        with self._queue_lock:
            self._queue.append(job)
            idle, self._busy = not self._busy, True
        if idle:
            self._group.world.ledger.spawn(self._work_off)

    def _work_off(self) -> None:
        while (job := self._next()) is not None:
            job()
        self._group.world.ledger.announce()

    def _next(self) -> Callable[[], None] | None:
        with self._queue_lock:
            self._busy = bool(self._queue)
            return self._queue.popleft() if self._queue else None


def _memory(
    call: Collective,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    rank: int,
    keep: bool,
) -> tuple[list[Source], list[Target]]:
    """What is read, and what is written, by this rank."""
    if call.kind == "broadcast":
        mine = rank == call.root
        return [Source(t) for t in operands if mine], [Target(t) for t in results if not mine]
    if call.kind == "all_reduce":
        return [], [Target(t) for t in results]
    if call.kind == "scatter" and rank != call.root:
        return [], [Target(t) for t in results]
    written = {storage_key(t) for t in results} if keep else set()
    read = [t.clone() if storage_key(t) in written else t for t in operands]
    return [Source(t) for t in read], [Target(t) for t in results if keep]
