# SPDX-License-Identifier: Apache-2.0
"""What a collective returns: the Python side of a `c10d::Work`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchtpu_distributed.ledger import Ledger, Pending


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

    def result(self) -> list[torch.Tensor]:
        """The tensors that got the results."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future of the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class HostWork(DeviceWork):
    """An exchange through host memory; `finish` waits for it and fills the tensors.

    Args:
        ledger: where failures are seen.
        tensors: its results.
        finish: waits and fills; called once.
        is_ready: whether `finish` would not wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        tensors: Sequence[torch.Tensor],
        finish: Callable[[], None],
        is_ready: Callable[[], bool],
    ) -> None:
        super().__init__(None, ledger, tensors)
        self._finish: Callable[[], None] | None = finish
        self._is_ready = is_ready

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the exchange."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether the data has arrived."""
        return self._finish is None or self._is_ready()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is complete when this returns: it waits."""
        self.wait()
        return super().get_future()
