# SPDX-License-Identifier: Apache-2.0
"""What other ranks of a group call, to compare before a collective begins.

Ranks of one machine share memory (`csrc/mailbox.h`): each looks at what those say that have come
before it, so nobody waits. On several machines the rank that comes first says it in the store, and
the others compare with it; that is one call of the store for each.
What is said is three lines: a digest of the call, the call's beginning, and the user's line; then,
where ranks exchange pieces whose sizes only two of them know, the bytes of the pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchtpu_distributed import _C
from torchtpu_distributed.stores import Answering

#: So many entries are kept in the store for ranks that lag behind.
_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What a rank exchanges with each rank of a group, in bytes.

    Attributes:
        sent: to each rank.
        received: from each rank.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]

    def encode(self) -> str:
        """As one line."""
        return " ".join(map(str, (*self.sent, *self.received, ".")))

    @classmethod
    def decode(cls, text: str) -> Pieces | None:
        """From the text of `encode`; None if it has been cut."""
        *words, end = text.split(" ")
        if end != ".":
            return None
        sizes = tuple(map(int, words))
        return cls(sent=sizes[: len(sizes) // 2], received=sizes[len(sizes) // 2 :])

    def with_rank(self, rank: int) -> str:
        """What is exchanged with a rank of the group, in words."""
        return (
            f" ({self.sent[rank]} bytes to group rank {rank}, {self.received[rank]} bytes from it)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a rank has said it calls."""

    what: str
    line: str
    pieces: Pieces | None

    @classmethod
    def decode(cls, text: str) -> _Said:
        """From an entry of the mailbox or the store."""
        _digest, what, line, *pieces = text.split("\n", 3)
        return cls(what=what, line=line, pieces=Pieces.decode(pieces[0]) if pieces else None)

    @property
    def name(self) -> str:
        """As messages show it."""
        return f"{self.what} at {self.line}" if self.line else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a rank calls that calls something else than this one.

    Attributes:
        rank: its number in the group.
        what: what it calls.
        line: the user's line there.
        of_mine: what to add to this rank's own call, so that the difference shows.
    """

    rank: int
    what: str
    line: str
    of_mine: str = ""

    @property
    def name(self) -> str:
        """As messages show it."""
        return f"{self.what} at {self.line}" if self.line else self.what


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
        rings: how many calls, and how many messages, of each rank the memory holds.

    Attributes:
        mailbox: the memory; None if they ask the store.
    """

    def __init__(
        self,
        store: Answering,
        rank: int,
        size: int,
        *,
        nearby: bool,
        abort: _C.Abort,
        read: Callable[[str], str],
        forget: Callable[[str], None],
        rings: tuple[int, int] = (_C.Mailbox.ENTRIES, 0),
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._abort, self._read, self._forget = abort, read, forget
        self._rings = rings
        self.mailbox = self._share() if nearby else None

    def compare(
        self,
        number: int,
        call: _C.Call,
        line: str,
        pieces: Pieces | None = None,
        *,
        patient: bool = True,
    ) -> Difference | None:
        """What another rank is known to call instead of `call`.

        Args:
            number: number of the collective in the group, from 1.
            call: what this rank calls.
            line: the user's line.
            pieces: what it exchanges with each rank; compared on one machine only.
            patient: whether to wait for ranks that are a whole ring behind, or else not to compare.
        """
        if self.mailbox is not None:
            rest = line if pieces is None else f"{line}\n{pieces.encode()}"
            said = self.mailbox.compare(number, call, rest, self._abort, patient)
            return self._misfit(number) if said is None else read(said)
        mine = f"{self._rank}\n{call.said}{line}"
        first = self._store.compare_set(f"call/{number}", "", mine).decode()
        if first == mine:
            if number > _KEPT:
                self._forget(f"call/{number - _KEPT}")
            return None
        return None if first.partition("\n")[2].startswith(call.digest) else read(first)

    def difference(self, number: int, call: _C.Call) -> Difference | None:
        """What another rank of this machine is known to call instead of `call`, by now."""
        for rank in range(self._size):
            said = self.mailbox.said(rank, number) if self.mailbox is not None else None
            if said is not None and not said.startswith(call.digest):
                return read(f"{rank}\n{said}")
        return self._misfit(number)

    def after(self, number: int) -> Difference | None:
        """What another rank of this machine is known to have called after a collective."""
        for rank in range(self._size):
            said = self._said(rank, number + 1) if rank != self._rank else None
            if said is not None:
                return Difference(rank=rank, what=said.what, line=said.line)
        return None

    def call(self, rank: int, number: int) -> str:
        """What a rank of this machine has said it calls as a collective; empty if unknown."""
        said = self._said(rank, number)
        return said.name if said is not None else ""

    def _misfit(self, number: int) -> Difference | None:
        """A rank that is known to exchange pieces of other sizes with this one."""
        mine = self._said(self._rank, number)
        if mine is None or mine.pieces is None:
            return None
        for rank in range(self._size):
            other = self._said(rank, number) if rank != self._rank else None
            if other is None or other.pieces is None:
                continue
            sent, received = other.pieces.received[self._rank], other.pieces.sent[self._rank]
            if (sent, received) != (mine.pieces.sent[rank], mine.pieces.received[rank]):
                what = f"{other.what}{other.pieces.with_rank(self._rank)}"
                added = mine.pieces.with_rank(rank)
                return Difference(rank=rank, what=what, line=other.line, of_mine=added)
        return None

    def parting(self, last: int) -> tuple[int, dict[int, str]] | None:
        """The first collective that ranks came to from different lines: number, and their calls.

        A rank that has left one out shows there first, while it calls the same as the others. None
        if that is not known: the ranks are on several machines, or have parted too long ago.

        Args:
            last: number of the last collective to look at.
        """
        together = False
        for number in range(max(1, last - self._rings[0] + 1), last + 1):
            said = {r: self._said(r, number) for r in range(self._size)}
            calls = {r: call for r, call in said.items() if call is not None}
            if len({call.line for call in calls.values()}) > 1:
                known = together or number == 1
                return (number, {r: call.name for r, call in calls.items()}) if known else None
            together = together or len(calls) == self._size
        return None

    def last(self, rank: int, about: int) -> tuple[int, str]:
        """Number and call of the last collective that a rank has said it calls; 0 if unknown.

        Args:
            rank: its number in the group.
            about: a number near which to look.
        """
        reach = self._rings[0]
        for number in range(about + reach, max(0, about - reach), -1):
            call = self._said(rank, number)
            if call is not None:
                return number, call.name
        return 0, ""

    def _said(self, rank: int, number: int) -> _Said | None:
        """What a rank has said it calls."""
        text = self.mailbox.said(rank, number) if self.mailbox is not None else None
        return _Said.decode(text) if text is not None else None

    def _share(self) -> _C.Mailbox | None:
        """The ring, if every rank can map it."""
        with self._file() as path:
            made = self._open(path)
            self._store.add("mailbox/good", 1 if made is not None else 0)
            if self._store.add("mailbox/seen", 1) == self._size:
                self._store.set("mailbox/all", str(self._store.add("mailbox/good", 0)))
            good = int(self._read("mailbox/all"))
        return made if good == self._size else None

    @contextmanager
    def _file(self) -> Iterator[str]:
        """Where ranks find the memory, until all have mapped it or the job has failed.

        The first rank's file has no name in a file system, where a rank that is killed before the
        others come would leave it.
        """
        if self._rank:
            yield self._read("mailbox")
            return
        try:
            file = os.memfd_create("torchtpu_calls")
        except (AttributeError, OSError):  # not on this system: no rank can open this
            self._store.set("mailbox", "")
            yield ""
            return
        try:
            path = f"/proc/{os.getpid()}/fd/{file}"
            self._store.set("mailbox", path)
            yield path
        finally:
            os.close(file)  # it lives on as long as a process has it

    def _open(self, path: str) -> _C.Mailbox | None:
        try:
            return _C.Mailbox(path, self._rank, self._size, *self._rings)
        except RuntimeError:
            return None


def read(said: str) -> Difference:
    """What a rank calls, from its number in the group, a line's end, and what it has said."""
    rank, _, text = said.partition("\n")
    other = _Said.decode(text)
    return Difference(rank=int(rank), what=other.what, line=other.line)
