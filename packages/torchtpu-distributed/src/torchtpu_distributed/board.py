# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other beside the data: one notice board in the store.

A notice is one line of JSON appended to one key, so that looking whether there is
anything new costs one call when all is well. Per-rank keys hold what changes all the
time: a heartbeat and the last collective of each group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from torchtpu_distributed.stores import Answering

_NOTICES = "notices"


class Board:
    """The board of one world, as one thread sees it.

    Args:
        store: a connection to the store.
        rank: the rank that writes.
    """

    def __init__(self, store: Answering, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._read = 0
        self._beats = 0
        self._positions = ""

    def post(self, kind: str, **facts: Any) -> None:
        """Append a notice."""
        self._store.append(_NOTICES, json.dumps({"kind": kind, "rank": self._rank, **facts}) + "\n")

    def new_notices(self) -> list[dict[str, Any]]:
        """Notices since the last call, of all ranks."""
        if not self._store.check([_NOTICES]):
            return []
        text = self._store.get(_NOTICES)
        new, self._read = text[self._read :], len(text)
        return [json.loads(line) for line in new.decode().splitlines()]

    def beat(
        self,
        positions: dict[str, tuple[int, str]],
        now: str,
        failed_in: str,
        waits_for: dict[str, Any] | None = None,
    ) -> None:
        """Show that this rank lives.

        Args:
            positions: number and name of the last collective it came to, by group.
            now: name of the oldest one it still waits for, if there is one.
            failed_in: name of the oldest one it waited for when it failed, if it has.
            waits_for: which rank it waits for, as `crossing` has it.
        """
        shown = {"groups": positions, "now": now, "failed_in": failed_in, "waits_for": waits_for}
        text = json.dumps(shown)
        if text != self._positions:
            self._store.set(f"at/{self._rank}", text)
            self._positions = text
        self._beats += 1  # after what it vouches for
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def beats(self, ranks: Iterable[int]) -> dict[int, int]:
        """The number of the last heartbeat of each rank that has one."""
        found = {}
        for rank in ranks:
            if self._store.check([f"beat/{rank}"]):
                found[rank] = int(self._store.get(f"beat/{rank}"))
        return found

    def position(self, rank: int, group: str) -> tuple[int, str]:
        """Number and name of the last collective a rank came to in a group; 0 if none."""
        number, name = self._at(rank)["groups"].get(group, (0, ""))
        return int(number), str(name)

    def waits_in(self, rank: int) -> str:
        """Name of the oldest collective a rank waits for; empty if there is none."""
        return str(self._at(rank)["now"])

    def failed_in(self, rank: int) -> str:
        """Name of the oldest collective a rank waited for when it failed; empty if it has not."""
        return str(self._at(rank)["failed_in"])

    def waits_for(self, rank: int) -> dict[str, Any] | None:
        """What a rank waits in, and for which one, as `crossing` has it; None if for none."""
        found: dict[str, Any] | None = self._at(rank)["waits_for"]
        return found

    def _at(self, rank: int) -> dict[str, Any]:
        if not self._store.check([f"at/{rank}"]):
            return {"groups": {}, "now": "", "failed_in": "", "waits_for": None}
        found: dict[str, Any] = json.loads(self._store.get(f"at/{rank}"))
        return found

    def put_stack(self, stack: str) -> None:
        """Show where this rank's main thread is."""
        self._store.set(f"stack/{self._rank}", stack)

    def stack(self, rank: int) -> str:
        """Where a rank's main thread was when it was asked; empty if it did not answer."""
        if not self._store.check([f"stack/{rank}"]):
            return ""
        return self._store.get(f"stack/{rank}").decode()

    def delete(self, keys: Iterable[str]) -> None:
        """Remove keys nobody reads any more."""
        for key in keys:
            self._store.delete_key(key)
