# SPDX-License-Identifier: Apache-2.0
"""Entries as files in a directory of one user, shared by the processes of a host.

A file is written under a temporary name and renamed, so that a reader never sees half of
one. Its modification time is that of its last use; the files used longest ago are removed
when the directory exceeds its bound.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torchtpu_core.cache.entry import Entry, peek
from torchtpu_core.cache.store import Stored, is_key, remove_oldest
from torchtpu_core.errors import DamagedEntryError, UnsafeDirectoryError

#: A prune leaves this share of the bound, so that the next entries do not prune again.
_FILL_AFTER_PRUNE = 0.9
#: A process counts what others wrote once it has written this share of the bound itself.
_RECOUNT_SHARE = 64
#: A temporary file this old was left by a killed writer.
_STALE_S = 3600.0


class DirectoryStore:
    """Keeps entries below a directory.

    Args:
        root: the directory; made when first written to.
        max_bytes: bound of all files together.
        trusted: accept a directory of another user (entries are signed).

    Raises:
        UnsafeDirectoryError: another user owns the directory or can write to it.
    """

    def __init__(self, root: Path, max_bytes: int, *, trusted: bool = False) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self._programs = root / "programs"
        self._lock = threading.Lock()
        self._counted_bytes: int | None = None
        self._written_bytes = 0
        if not trusted:
            for path in (root, self._programs):
                _refuse_others(path)

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.root)

    def get(self, key: str) -> bytes | None:
        """The content of a key, which thereby counts as used."""
        content = self.read(key)
        if content is not None:
            with contextlib.suppress(OSError):  # a directory that may only be read
                os.utime(self._path(key))
        return content

    def read(self, key: str) -> bytes | None:
        """The content of a key."""
        try:
            with self._open(key) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, key: str, content: bytes) -> None:
        """Keep a content and hold the bound."""
        path = self._path(key)
        self._make(path.parent)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._hold_bound(len(content))

    def header(self, key: str) -> Entry:
        """The unchecked header of an entry."""
        with self._open(key) as file:
            return peek(file)

    def remove(self, key: str) -> None:
        """Forget a key."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):  # the latter: of a directory, on macOS
            if not path.is_dir():
                raise
            shutil.rmtree(path)

    def entries(self) -> Iterator[Stored]:
        """All that is kept."""
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # another process pruned it
                found = path.lstat()
                yield Stored(found.st_mtime, found.st_size, path.name)

    def prune(self) -> None:
        """Remove the entries used longest ago, until a little less than the bound remains."""
        self._remove_leftovers()
        remove_oldest(self, int(self.max_bytes * _FILL_AFTER_PRUNE))
        with self._lock:
            self._counted_bytes = None

    def lock_path(self, key: str) -> Path:
        """The file to lock while the program of a key is compiled; few keys share one."""
        locks = self.root / "locks"
        self._make(locks)
        return locks / key[:3]

    def _make(self, path: Path) -> None:
        """Make a directory below the root, each level for the owner alone."""
        if path.is_dir():
            return
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for level in (self.root, self._programs, path):
            level.mkdir(exist_ok=True, mode=0o700)

    def _hold_bound(self, added_bytes: int) -> None:
        with self._lock:
            self._written_bytes += added_bytes
            if self._counted_bytes is not None:
                self._counted_bytes += added_bytes
            known = self._counted_bytes
            recount = known is None or self._written_bytes * _RECOUNT_SHARE > self.max_bytes
        if recount:
            known = sum(entry.size_bytes for entry in self.entries())
            with self._lock:
                self._counted_bytes, self._written_bytes = known, 0
        if known is not None and known > self.max_bytes:
            self.prune()

    def _files(self) -> Iterator[Path]:
        for path in self._programs.glob("??/*"):
            if is_key(path.name):
                yield path

    def _remove_leftovers(self) -> None:
        old = time.time() - _STALE_S
        for path in self._programs.glob("??/.*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()

    def _open(self, key: str) -> BinaryIO:
        """The file of a key; opening never waits, as it would for a writer of a FIFO."""
        descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        raise DamagedEntryError("it is not a regular file")

    def _path(self, key: str) -> Path:
        return self._programs / key[:2] / key


def _refuse_others(path: Path) -> None:
    """Refuse a directory that others own or write to; one that does not exist is fine."""
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeDirectoryError(f"{path} belongs to the user with id {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeDirectoryError(
            f"{path} can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
        )
