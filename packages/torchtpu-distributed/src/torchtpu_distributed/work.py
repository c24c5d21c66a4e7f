# SPDX-License-Identifier: Apache-2.0
"""What a collective returns: the Python side of a `c10d::Work`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import distributed as dist

from torchtpu_distributed import _C
from torchtpu_distributed.futures import FutureInOrder
from torchtpu_distributed.ledger import Ledger
from torchtpu_distributed.pending import Pending


class DeviceWork:
    """A collective whose results are tensors of the device.

    The tensors have their new values when the call returns, as values that are being
    computed, so ops on them can be called at once, and waiting needs no synchronisation.

    Args:
        pending: the collective; None if there was nothing to do.
        ledger: where it is kept.
        tensors: its results.
    """

    def __init__(
        self, pending: Pending | None, ledger: Ledger, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._pending = pending
        self._ledger = ledger
        self._tensors = list(tensors)
        self._is_gathered = False

    def of(self, tensors: Sequence[torch.Tensor]) -> DeviceWork:
        """The same work, as that of tensors derived from its results."""
        self._tensors = list(tensors)
        return self

    def gathered(self) -> DeviceWork:
        """The same work, whose future holds one tensor with a row for each of its results.

        PyTorch's hooks that quantise gradients index that of `all_gather` by rank.
        """
        self._is_gathered = True
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        """Make later ops see the results, which they do anyway; raise if the job has failed."""
        self._ledger.check()
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the results are computed."""
        self._ledger.check()
        return self._pending is None or self._pending.done

    def is_success(self) -> bool:
        """Whether they are computed without an error."""
        return self._ledger.failure is None and self.is_completed()

    def source_rank(self) -> int:
        """Group rank a received message came from.

        Raises:
            RuntimeError: it is not the work of a receive.
        """
        raise RuntimeError(
            "source_rank() is known of the work of a receive only: dist.irecv() returns one."
        )

    def result(self) -> list[torch.Tensor]:
        """The tensors that got the results."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future of the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        _C.finish_future(future, self._held())
        return future

    def _held(self) -> list[torch.Tensor]:
        """What a future holds."""
        if not self._is_gathered:
            return self._tensors
        with torch.no_grad():
            return [torch.stack(self._tensors)]


class Helper(Protocol):
    """What runs queued collectives."""

    def help(self, work: QueuedWork) -> None:
        """Run it, and what is queued before it, in the calling thread unless another does."""

    def hurry(self) -> None:
        """Begin in another thread now."""


class QueuedWork(DeviceWork):
    """A collective that a thread of the group runs; its tensors are not to be used before.

    Args:
        pending: the collective.
        ledger: where it is kept.
        tensors: its results.
        memory: what it works on, kept until it is over.
        runner: runs it, here or in a thread of its own.
    """

    def __init__(
        self,
        pending: Pending,
        ledger: Ledger,
        tensors: Sequence[torch.Tensor],
        memory: object,
        runner: Helper,
    ) -> None:
        super().__init__(pending, ledger, tensors)
        self._queued = pending
        self._memory: object = memory
        self._runner = runner
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._lock = threading.Lock()
        self._over = False

    @property
    def has_callbacks(self) -> bool:
        """Whether somebody has asked for its future."""
        return self._future is not None

    def fail(self, error: Exception) -> None:
        """Note why it did not finish; `complete` follows."""
        self._error = error

    def complete(self) -> None:
        """Say that it is over."""
        with self._lock:
            self._over, self._memory = True, None
            future, self._future = self._future, None
        self._ledger.announce()
        if future is not None:
            self._settle(future)
            self._ledger.announce()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the results.

        Raises:
            DistBackendError: `timeout_s` are over; it goes on, and can be waited for again.
        """
        if timeout_s is None:
            self._runner.help(self)
        else:
            self._runner.hurry()
        if not self._ledger.wait_until(lambda: self._over, timeout_s):
            raise dist.DistBackendError(
                f"{self._queued.name}: not over in the {timeout_s:g} s that wait() was given. It "
                "goes on: wait again, or give it longer."
            )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the results are there, or it failed."""
        return self._over

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors; that of gathered ones is complete: it waits."""
        if self._is_gathered:  # they are copied, for which this thread has its place among ops
            self._runner.help(self)
            self._ledger.wait_until(lambda: self._over)
        with self._lock:
            future = self._future or FutureInOrder(self)
            if self._over:
                self._settle(future)
            else:
                self._future = future
        if not self._over:
            self._runner.hurry()
        return future

    def wait_for_future(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        """Wait until it is over, and this future of it is complete."""
        self._runner.help(self)
        self._ledger.wait_until(future.done)

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is not None:
            _C.fail_future(future, self._error)
        else:
            _C.finish_future(future, self._held())


class SeriesWork(DeviceWork):
    """Several works as one.

    Args:
        ledger: where failures are seen.
        works: the works.
        on_host: works of gloo on CPU tensors.
    """

    def __init__(
        self, ledger: Ledger, works: Sequence[DeviceWork], on_host: Sequence[dist.Work] = ()
    ) -> None:
        super().__init__(None, ledger, [t for work in works for t in work.result()])
        self._works = list(works)
        self._on_host = list(on_host)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait(timeout_s)
        for host_work in self._on_host:
            host_work.wait()
        return True

    def is_completed(self) -> bool:
        """Whether all are complete."""
        return all(work.is_completed() for work in (*self._works, *self._on_host))

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is complete when this returns: it waits."""
        self.wait()
        return super().get_future()
