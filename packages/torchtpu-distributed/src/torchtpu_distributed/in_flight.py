# SPDX-License-Identifier: Apache-2.0
"""Memory of the device that collectives under way read or write."""

from __future__ import annotations

from collections.abc import Iterable

from torchtpu_distributed import _C
from torchtpu_distributed.pending import Pending


class InFlight:
    """Which collective uses which memory; keys are addresses of live objects.

    Attributes:
        count: of the keys, for compiled code.
    """

    def __init__(self) -> None:
        self._users: dict[int, Pending] = {}
        self.count = _C.Count()

    def add(self, keys: Iterable[int], user: Pending) -> None:
        """A collective begins to use memory."""
        for key in keys:
            self._users[key] = user
        self.count.value = len(self._users)

    def remove(self, user: Pending) -> None:
        """A collective is over."""
        for key in [key for key, held in list(self._users.items()) if held is user]:
            del self._users[key]
        self.count.value = len(self._users)

    def users(self, keys: Iterable[int]) -> list[Pending]:
        """The collectives that use some of this memory."""
        return [self._users[key] for key in keys if key in self._users]
