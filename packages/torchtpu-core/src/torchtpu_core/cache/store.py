# SPDX-License-Identifier: Apache-2.0
"""What a place that keeps entries can do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torchtpu_core.cache.entry import Entry

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """One kept entry, as listed.

    Attributes:
        used_at_s: seconds since the epoch of its last use, or of its making if the place
            does not know.
        size_bytes: of its file.
        key: its key.
    """

    used_at_s: float
    size_bytes: int
    key: str


class Store(Protocol):
    """Keeps bytes under hexadecimal keys. Any method may raise OSError."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    def get(self, key: str) -> bytes | None:
        """The content of a key, None if there is none.

        Raises:
            DamagedEntryError: something that has no content lies in its place.
        """

    def read(self, key: str) -> bytes | None:
        """As `get`, but looking does not count as use."""

    def header(self, key: str) -> Entry:
        """The unchecked header of an entry, without reading the rest.

        Raises:
            DamagedEntryError: it has none.
        """

    def put(self, key: str, content: bytes) -> None:
        """Keep a content; whoever reads sees the old, the new, or nothing."""

    def remove(self, key: str) -> None:
        """Forget a key, if it is there."""

    def entries(self) -> Iterator[Stored]:
        """All that is kept, in any order."""


def is_key(name: str) -> bool:
    """Whether a name is that of an entry: other files are not ours to list or to remove."""
    return _KEY.fullmatch(name) is not None


def remove_oldest(store: Store, limit_bytes: int) -> list[Stored]:
    """Remove the entries used longest ago until at most `limit_bytes` remain.

    Returns:
        What was removed.
    """
    kept = sorted(store.entries())
    total = sum(entry.size_bytes for entry in kept)
    removed: list[Stored] = []
    for entry in kept:
        if total <= limit_bytes:
            break
        store.remove(entry.key)
        removed.append(entry)
        total -= entry.size_bytes
    return removed
