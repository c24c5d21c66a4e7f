# SPDX-License-Identifier: Apache-2.0
"""Objects that ranks of a script send each other while they are recorded, by files.

Pipeline stages tell each other the shapes of what they will send. The recorded ranks are
processes of their own; a rank that is not recorded is spoken for by the one that stands for it.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtpu_core.errors import PlanError

TIMEOUT_S = 1800.0
POLL_S = 0.02
#: A file of this name says that a rank failed, and the others need not wait.
FAILED = "failed"


class NeedsOthers(BaseException):
    """The script waits for another rank, and only one is recorded; no handler catches it."""


class Alone:
    """The mailbox of a rank that is recorded without others."""

    def send(self, _: int, __: Any) -> None:
        """Nobody receives it."""

    def receive(self, _: int) -> Any:
        """Nobody sends anything."""
        raise NeedsOthers


class Mailbox:
    """The mailbox of one of several ranks.

    Attributes:
        folder: where the messages lie.
        rank: whose it is.
        stands_for: the recorded rank that stands for a rank.
    """

    def __init__(self, folder: Path, rank: int, stands_for: Callable[[int], int]) -> None:
        self.folder, self.rank, self.stands_for = folder, rank, stands_for
        self._messages: Counter[tuple[int, int]] = Counter()

    def send(self, target: int, content: Any) -> None:
        """Sends a copy of an object to a rank."""
        path = self._next(self.rank, self.stands_for(target))
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(content))
        unfinished.rename(path)

    def receive(self, source: int) -> Any:
        """Waits for the next object from a rank.

        Raises:
            PlanError: another rank failed, nothing came, or the rank stands for the sender too.
        """
        path = self._next(self.stands_for(source), self.rank)
        if self.stands_for(source) == self.rank and not path.exists():
            raise PlanError(
                f"rank {self.rank} waits for an object of rank {source}, for which it stands "
                f"itself. Record that one as well, --ranks {source},{self.rank}, or leave --ranks "
                "out: then the ranks are found."
            )
        until = time.monotonic() + TIMEOUT_S
        while not path.exists():
            if (self.folder / FAILED).exists():
                raise PlanError(f"rank {self.rank} waits for rank {source}, which failed.")
            if time.monotonic() > until:
                raise PlanError(
                    f"rank {self.rank} waited {TIMEOUT_S:.0f} s for an object of rank {source}, "
                    "which sent none."
                )
            time.sleep(POLL_S)
        return pickle.loads(path.read_bytes())

    def _next(self, source: int, target: int) -> Path:
        number = self._messages[source, target]
        self._messages[source, target] += 1
        return self.folder / f"{source}-{target}-{number}"
