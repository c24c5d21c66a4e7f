# SPDX-License-Identifier: Apache-2.0
"""Running collectives of a simulated device by gloo, on the device's own memory.

Compiled code alone runs those that it will take (`csrc/direct.h`). Of the others a synchronous
one runs in the thread that calls it; asynchronous ones run one after another, in a thread of the
group or in one that waits for them, and the next synchronous one waits for them, so that all
ranks of a group keep one order. Every wait here ends when the job has failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core import calls as core_calls

from torchtpu_distributed import _C, differences, first_calls, message_ends, pricing
from torchtpu_distributed.calls import Collective
from torchtpu_distributed.device_memory import Source, Target, storage_key
from torchtpu_distributed.errors import CollectiveError, ProcessGroupError
from torchtpu_distributed.first_calls import Pieces
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_collectives import Begun, Gloo
from torchtpu_distributed.job_queue import JobQueue
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.stacks import stand_in_line
from torchtpu_distributed.work import DeviceWork, QueuedWork

#: An all-to-all of pieces whose sizes only two ranks know; as in `csrc/direct_calls.cpp`.
PIECES = "all_to_all of pieces"


class HostRunner:
    """Runs the collectives of one group.

    Args:
        group: the group.
        connect: makes the gloo backend that they use; blocks until all ranks do.

    Attributes:
        direct: the compiled way.
    """

    def __init__(self, group: Group, connect: Callable[[], dist.ProcessGroupGloo]) -> None:
        self._group = group
        self._connect = connect
        self._gloo: Gloo | None = None
        self._known: dict[Any, _C.Call] = {}
        ledger = group.world.ledger
        self.direct = _C.Direct(
            group.state,
            ledger.records,
            ledger.abort,
            ledger.in_flight.count,
            ledger.operations,
            self,
            group.rank,
            group.world.by_gloo,
        )
        self._queue = JobQueue(ledger.threads.run)

    def run(
        self,
        call: Collective,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        *,
        keep: bool = True,
        later: bool = False,
        timeout_s: float | None = None,
    ) -> DeviceWork:
        """Run a collective on tensors of the device.

        Args:
            call: the collective; its shapes are those of `results`.
            operands: what this rank puts in, on one device.
            results: tensors that get the results.
            keep: whether this rank is one that gets them.
            later: whether it may run on while the caller does something else.
            timeout_s: seconds it may take; None for the group's.

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
        keys = {storage_key(t) for t in (*operands, *results)}
        for earlier in ledger.in_flight.users(keys):
            self._queue.help_until(functools.partial(getattr, earlier, "done"))
        with group.state:
            for earlier in ledger.in_flight.users(keys):
                ledger.wait_done(earlier)
            ledger.operations.wait_for_storages(list(keys), ledger.abort)
            pending = group.pending(known, core_calls.user_line(), timeout_s)
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
                self._wait_idle()
                self.perform(pending, begin)
                for target in targets:
                    target.finish()
                return DeviceWork(pending, ledger, list(results))
            keys |= {id(target.array) for target in targets}
            ledger.in_flight.add(keys, pending)
            work = QueuedWork(pending, ledger, list(results), (sources, targets), self)
            self._enqueue(pending, begin, work)
            return work

    def run_host(
        self,
        call: _C.Call,
        begin: Callable[[Gloo], Begun],
        pieces: Pieces | None = None,
        timeout_s: float | None = None,
    ) -> DeviceWork:
        """Run a collective of host memory in its turn.

        Args:
            call: what ranks must agree on.
            begin: starts it.
            pieces: what this rank exchanges with each, if only two ranks know each size.
            timeout_s: seconds it may take; None for the group's.
        """
        with self._group.state:
            self._wait_idle()
            pending = self._group.pending(call, core_calls.user_line(), timeout_s)
            self.perform(pending, begin, pieces)
        return DeviceWork(pending, self._group.world.ledger, [])

    def describe(
        self,
        kind: str,
        op: str,
        root: int,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> _C.Call:
        """What ranks must agree on, for compiled code.

        Args:
            kind: ``barrier``, `PIECES`, or a kind of `Collective`.
            op: as `Collective` has it.
            root: likewise.
            operands: what this rank puts in.
            results: what it gets.
        """
        if kind == "barrier":
            return _C.Call(kind, kind, (), (), 0)
        if kind == PIECES:
            inputs = [(t.dtype, tuple(t.shape)) for t in operands]
            outputs = [(t.dtype, tuple(t.shape)) for t in results]
            what = f"all_to_all of {operands[0].dtype} with split sizes, or of a list of tensors"
            nbytes = sum(t.nbytes for t in operands)
            spent_ps = pricing.device_time_ps("all_to_all", nbytes, self._group)
            return _C.Call(what, "all_to_all", inputs, outputs, spent_ps)
        if kind == "scatter":  # the root alone has its pieces
            output = results[0]
            operands = [output.new_empty((self._group.size, *output.shape), device="meta")]
        return self._know(Collective.of(kind, results, op=op, root=root), operands, results)

    def describe_message(self, kind: str, peer: int, tensor: torch.Tensor) -> _C.Call:
        """What the recorder shows of a message, for compiled code.

        Args:
            kind: ``send`` or ``recv``.
            peer: group rank of the other end; negative if any rank may send.
            tensor: what is sent, or gets what is received.
        """
        sends, rank = kind == "send", self._group.rank
        of = [(tensor.dtype, tuple(tensor.shape))]
        pair = (rank, peer) if sends else (peer, rank)
        return _C.Call(
            f"{kind} {'to' if sends else 'from'} "
            f"{f'group rank {peer}' if peer >= 0 else 'any rank'}",
            f"{kind} {rank}{'->' if sends else '<-'}{peer if peer >= 0 else rank}",
            of if sends else (),
            () if sends else of,
            pricing.device_time_ps("send", tensor.nbytes, self._group, (pair,)) if peer >= 0 else 0,
        )

    def wait_behind(self, pending: Pending, wait: Callable[[], None]) -> None:
        """Wait for a message in a thread of its own."""
        ledger = self._group.world.ledger
        ledger.threads.run(ledger.run_here, pending, wait)

    def message_failed(self, pending: Pending, message: str) -> None:
        """Fail because of what gloo told compiled code about a message, or of CPU tensors."""
        ledger = self._group.world.ledger
        try:
            ledger.check()
            ledger.report(pending, RuntimeError(message))
            ledger.wait_for_verdict()
        finally:
            ledger.give_up(pending)
        raise CollectiveError(f"{pending.name}: {message}")

    def message_differs(self, pending: Pending, said: str) -> None:
        """Fail because the ends of a message differ, for compiled code; see `message_ends`."""
        message_ends.refuse(self._group, pending, said)

    def message_reshaped(self, pending: Pending, said: str) -> None:
        """Warn that the ends of a message have other shapes, for compiled code."""
        message_ends.warn_of_shapes(self._group, pending, said)

    def stand_in_line(self) -> str:
        """What stands for the line of a call by a thread without one, for compiled code."""
        return stand_in_line()

    def check(self) -> None:
        """Raise the failure of the job, if there is one."""
        self._group.world.ledger.check()

    def differs(self, pending: Pending, said: str) -> None:
        """Fail because another rank calls something else than compiled code has."""
        try:
            found = first_calls.read(said) if said else differences.of_pending(self._group, pending)
            if found is None:
                raise ProcessGroupError(
                    f"{pending.name}: another rank sends or expects pieces of other sizes than "
                    "this one, and which is not known any more. Compare the split sizes, or the "
                    "lists, of all ranks."
                )
            self._group.refuse(pending, found)
        finally:
            self._group.world.ledger.give_up(pending)

    def failed(self, pending: Pending, message: str) -> None:
        """Fail because of what gloo told compiled code."""
        self._fail(pending, RuntimeError(message))

    def ended(self, pending: Pending, _message: str) -> None:
        """Fail because the job did while compiled code waited, or is about to."""
        self.interrupted(pending)
        self._group.world.ledger.wait_for_verdict()

    def interrupted(self, pending: Pending) -> None:
        """Leave a collective that compiled code has left in its middle."""
        ledger = self._group.world.ledger
        ledger.leave_stuck(self._gloo)
        ledger.give_up(pending)

    def _wait_idle(self) -> None:
        """Wait until no asynchronous collective of the group is under way.

        Raises:
            CollectiveError: the job has failed.
        """
        if not self._queue.is_idle():
            self.hurry()
            self._group.world.ledger.wait_until(self._queue.is_idle)

    def perform(
        self, pending: Pending, begin: Callable[[Gloo], Begun], pieces: Pieces | None = None
    ) -> None:
        """Make sure all ranks call the same, and run it in this thread.

        Args:
            pending: the collective, entered into the ledger.
            begin: starts it.
            pieces: what this rank exchanges with each, if only two ranks know each size.

        Raises:
            CollectiveError: it cannot finish.
        """
        ledger = self._group.world.ledger
        try:
            self.direct.settle()  # what compiled code has been called for before
            if self.direct.is_broken:
                ledger.wait_for_verdict()
            self._group.agree(pending, pieces)
            gloo = self._connected(pending)
            works, end = begin(gloo)
            ledger.launched(pending)
            ledger.wait_for_works(works, gloo.backend)
            end()
            self.direct.drain()  # who has waited for one has waited for those before it
        except CollectiveError:
            ledger.keep(begin)
            ledger.give_up(pending)
            raise
        except (RuntimeError, OSError) as error:
            ledger.keep(begin)
            self._fail(pending, error)
        except BaseException:
            ledger.keep(begin)
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

    def _know(
        self, call: Collective, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> _C.Call:
        """The same object for every run of a collective."""
        inputs = tuple((t.dtype, tuple(t.shape)) for t in operands)
        key = (call, inputs, _C.fsdp_range())
        if key not in self._known:
            nbytes = sum(t.nbytes for t in operands)
            self._known[key] = _C.Call(
                call.describe(inputs),
                call.kind,
                inputs,
                tuple((t.dtype, tuple(t.shape)) for t in results),
                pricing.device_time_ps(call.kind, nbytes, self._group),
            )
        return self._known[key]

    def _connected(self, pending: Pending) -> Gloo:
        """The group's connections, made at its first collective; that wait can end too."""
        ledger = self._group.world.ledger
        if self._gloo is None:
            backend = ledger.run_apart(pending, self._connect)
            self._gloo = Gloo(backend)
            nearby = self._group.size == 1 or self._group.mailbox is not None
            if self._group.world.by_gloo and nearby:
                self.direct.connect(backend, self._group.mailbox)
        return self._gloo

    def _enqueue(self, pending: Pending, begin: Callable[[Gloo], Begun], work: QueuedWork) -> None:
        def job() -> QueuedWork:
            ledger = self._group.world.ledger
            try:
                self.perform(pending, begin)
            except Exception as error:
                work.fail(error)
            finally:
                ledger.in_flight.remove(pending)
            return work

        self._queue.add(job)

    def help(self, work: QueuedWork) -> None:
        """Run what is queued before a collective, and it, in the thread that waits for it."""
        self._queue.help_until(work.is_completed)

    def hurry(self) -> None:
        """Run what is queued now: nobody may wait for it."""
        self._queue.hurry()


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
