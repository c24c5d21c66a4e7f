# SPDX-License-Identifier: Apache-2.0
"""What other ranks of a group call, to compare before a collective begins.

Ranks of one machine share memory (`csrc/mailbox.h`): each looks at what those say that have come
before it, so nobody waits. On several machines all wait for what the first rank says in the store.
What is said is three lines: a digest of the call, the call's beginning, and the user's line.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import distributed as dist

from torchtpu_distributed import _C

#: So many entries are kept in the store for ranks that lag behind.
_KEPT = 256
_MEMORY = Path("/dev/shm")


class FirstCalls:
    """The calls that ranks of one group come to first.

    Args:
        store: the group's own part of the store.
        rank: this process's number in the group.
        size: number of ranks.
        nearby: whether all of them are on this machine.
        abort: ends the waits.
        read: reads a key of `store`, waiting for it.
        forget: deletes a key of `store` when convenient.

    Attributes:
        mailbox: the memory; None if they ask the store.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        nearby: bool,
        abort: _C.Abort,
        read: Callable[[str], str],
        forget: Callable[[str], None],
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._abort, self._read, self._forget = abort, read, forget
        self.mailbox = self._share() if nearby else None

    def compare(self, number: int, call: _C.Call, line: str) -> str | None:
        """Which rank is known to call something else than `call`, and what: see `read`.

        Args:
            number: number of the collective in the group, from 1.
            call: what this rank calls.
            line: the user's line.
        """
        if self.mailbox is not None:
            return self.mailbox.compare(number, call, line, self._abort)
        if self._rank == 0:
            self._store.set(f"call/{number}", call.said + line)
            if number > _KEPT:
                self._forget(f"call/{number - _KEPT}")
            return None
        said = self._read(f"call/{number}")
        return None if said.startswith(call.digest) else f"0\n{said}"

    def parting(self, last: int) -> tuple[int, dict[int, str]] | None:
        """The first collective that ranks came to from different lines: number, and their calls.

        A rank that has left one out shows there first, while it calls the same as the others. None
        if that is not known: the ranks are on several machines, or have parted too long ago.

        Args:
            last: number of the last collective to look at.
        """
        together = False
        for number in range(max(1, last - _C.Mailbox.ENTRIES + 1), last + 1):
            said = {r: self._said(r, number) for r in range(self._size)}
            calls = {r: call for r, call in said.items() if call is not None}
            if len({line for _what, line in calls.values()}) > 1:
                known = together or number == 1
                return (number, {r: _at(*call) for r, call in calls.items()}) if known else None
            together = together or len(calls) == self._size
        return None

    def last(self, rank: int, about: int) -> tuple[int, str]:
        """Number and call of the last collective that a rank has said it calls; 0 if unknown.

        Args:
            rank: its number in the group.
            about: a number near which to look.
        """
        reach = _C.Mailbox.ENTRIES
        for number in range(about + reach, max(0, about - reach), -1):
            call = self._said(rank, number)
            if call is not None:
                return number, _at(*call)
        return 0, ""

    def _said(self, rank: int, number: int) -> tuple[str, str] | None:
        """What a rank has said it calls, and where."""
        said = self.mailbox.said(rank, number) if self.mailbox is not None else None
        if said is None:
            return None
        _digest, what, line = said.split("\n", 2)
        return what, line

    def _share(self) -> _C.Mailbox | None:
        """The ring, if every rank can map it."""
        made = self._make() if self._rank == 0 else self._open(self._read("mailbox"))
        self._store.add("mailbox/good", 1 if made is not None else 0)
        if self._store.add("mailbox/seen", 1) == self._size:
            self._store.set("mailbox/all", str(self._store.add("mailbox/good", 0)))
        good = int(self._read("mailbox/all"))
        if self._rank == 0 and made is not None:
            Path(self._path).unlink()  # it lives on as long as a process has it
        return made if good == self._size else None

    def _make(self) -> _C.Mailbox | None:
        folder = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
        self._path = str(folder / f"torchtpu_calls_{os.getpid()}_{secrets.token_hex(4)}")
        made = self._open(self._path)
        self._store.set("mailbox", self._path if made is not None else "-")
        return made

    def _open(self, path: str) -> _C.Mailbox | None:
        try:
            return None if path == "-" else _C.Mailbox(path, self._rank, self._size)
        except RuntimeError:
            return None


def _at(what: str, line: str) -> str:
    return f"{what} at {line}" if line else what


def read(said: str) -> tuple[int, str, str]:
    """Group rank of one that calls something else, what it calls, and where."""
    rank, _digest, what, line = said.split("\n", 3)
    return int(rank), what, line
