# SPDX-License-Identifier: Apache-2.0
"""The levels of the cache as one: look up, keep, compile once between many.

Whatever goes wrong with a place or an entry costs a compilation and one warning of its
kind; it never raises and never gives a wrong program.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.entry import Entry, decode, encode
from torchtpu_core.cache.shared import SharedStore
from torchtpu_core.cache.single_flight import single_flight
from torchtpu_core.cache.store import Store
from torchtpu_core.errors import DamagedEntryError

_T = TypeVar("_T")
_HOW_TO_MOVE = {
    "directory": "TORCH_TPU_CACHE_DIR chooses another directory.",
    "shared": "TORCH_TPU_CACHE_URL chooses another shared root.",
}


class CacheWarning(UserWarning):
    """An entry or a place of the program cache cannot be used."""


class ProgramCache:
    """The directory of this host and the root shared by many hosts, either of which may be absent.

    Args:
        directory: the directory's store.
        shared: the shared root's store.
        host: fingerprint of this platform; an entry of another one is not used.
        secret: signs entries; those signed otherwise are not used.
        wait_s: how long to wait for another process that compiles the same program.

    Attributes:
        hits: entries found, by level.
    """

    def __init__(
        self,
        directory: DirectoryStore | None,
        shared: SharedStore | None,
        *,
        host: str,
        secret: bytes = b"",
        wait_s: float,
    ) -> None:
        self.directory = directory
        self.shared = shared
        self.host = host
        self.secret = secret
        self.wait_s = wait_s
        self.hits: Counter[str] = Counter()
        self._reported: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether there is any place to keep entries."""
        return self.directory is not None or self.shared is not None

    def find(self, key: str, *, remote: bool = True) -> tuple[Entry, str] | None:
        """A good entry of a key and the level it came from.

        Args:
            key: its key.
            remote: also ask the shared root, which may take a while; what it has is
                copied to the directory.
        """
        entry = self._read("directory", self.directory, key)
        if entry is not None:
            return entry, "directory"
        if not remote:
            return None
        entry = self._read("shared", self.shared, key)
        if entry is None:
            return None
        self._write("directory", self.directory, entry)
        return entry, "shared"

    def count_hit(self, level: str) -> None:
        """Count a program that a level made unnecessary to compile."""
        with self._lock:
            self.hits[level] += 1

    def keep(self, entry: Entry) -> None:
        """Keep an entry at every level."""
        self._write("directory", self.directory, entry)
        self._write("shared", self.shared, entry)

    def refuse(self, key: str, level: str, why: str) -> None:
        """Say once that an entry turned out to be unusable; whoever compiles it replaces it."""
        self._report(level, "unusable", f"the entry {key} {why}")

    def compiling(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Hold while the program of a key is made; whoever else wants it waits, boundedly."""
        return single_flight(
            self._lock_path(key),
            self.wait_s,
            lambda why: self._report("directory", "waited", f"no program {key} yet: {why}"),
        )

    def _lock_path(self, key: str) -> Path | None:
        if self.directory is None:
            return None
        try:
            return self.directory.lock_path(key)
        except OSError as error:
            self._cannot("directory", "written", self.directory, error)
            return None

    def _read(self, level: str, store: Store | None, key: str) -> Entry | None:
        if store is None:
            return None
        try:
            content = store.get(key)
            if content is None:
                return None
            entry = decode(content, key, self.secret)
            if entry.host != self.host:
                raise DamagedEntryError("it was made for another platform")
        except OSError as error:
            self._cannot(level, "read", store, error)
            return None
        except DamagedEntryError as error:
            self._report(level, "damaged", f"the entry {key} in {store.place} is refused: {error}")
            return None
        return entry

    def _write(self, level: str, store: Store | None, entry: Entry) -> None:
        if store is None:
            return
        try:
            store.put(entry.key, encode(entry, self.secret))
        except OSError as error:
            self._cannot(level, "written", store, error)

    def _cannot(self, level: str, what: str, store: Store, error: OSError) -> None:
        if level == "shared":
            self.shared = None  # each further attempt might wait for the network
        self._report(level, "place", f"{store.place} cannot be {what} ({error})")

    def _report(self, level: str, kind: str, what: str) -> None:
        with self._lock:
            if (level, kind) in self._reported:
                return
            self._reported.add((level, kind))
        warnings.warn(
            f"<TorchTpu/cache> {what}. Programs are compiled anew instead; results are not "
            f"affected. {_HOW_TO_MOVE[level]} This is shown once.",
            CacheWarning,
            stacklevel=2,
        )


def place_or_warn(make: Callable[[], _T], what: str) -> _T | None:
    """A store, or None and a warning if it cannot be had."""
    try:
        return make()
    except Exception as error:
        warnings.warn(
            f"<TorchTpu/cache> {what} is not used: {error}. Programs are compiled anew; results "
            "are not affected.",
            CacheWarning,
            stacklevel=2,
        )
        return None
