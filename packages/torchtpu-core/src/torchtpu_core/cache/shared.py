# SPDX-License-Identifier: Apache-2.0
"""Entries below a URL that many hosts reach: anything fsspec can open.

An object store shows an object when it is complete; on a file system an entry is written
under a temporary name and renamed. There is no lock between hosts: two that compile the
same program at once both write it, and either content serves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import fsspec

from torchtpu_core.cache.entry import Entry, peek
from torchtpu_core.cache.store import Stored, is_key
from torchtpu_core.errors import DamagedEntryError

#: Protocols whose writes appear at once and whole.
_WHOLE_OBJECTS = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "memory"}
)

#: Fetched at a time to read a header, which is a few KiB.
_HEADER_BLOCK_BYTES = 1 << 16


class SharedStore:
    """Keeps entries below a URL.

    Args:
        url: of the root, such as ``gs://bucket/torchtpu``.

    Raises:
        ValueError: no such protocol.
        ImportError: the protocol's file system is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._root = f"{root.rstrip('/')}/programs"
        protocols = self._fs.protocol
        names = (protocols,) if isinstance(protocols, str) else tuple(protocols)
        self._whole = any(name in _WHOLE_OBJECTS for name in names)

    @property
    def place(self) -> str:
        """The URL."""
        return self.url

    def get(self, key: str) -> bytes | None:
        """The content of a key."""
        try:
            return bytes(self._fs.cat_file(self._path(key)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError as error:
            raise DamagedEntryError("it is a directory") from error
        except Exception as error:
            raise _as_os_error(error) from error

    def read(self, key: str) -> bytes | None:
        """The content of a key."""
        return self.get(key)

    def header(self, key: str) -> Entry:
        """The unchecked header of an entry, of which only the beginning is fetched."""
        try:
            with self._fs.open(self._path(key), "rb", block_size=_HEADER_BLOCK_BYTES) as file:
                return peek(file)
        except DamagedEntryError:
            raise
        except IsADirectoryError as error:
            raise DamagedEntryError("it is a directory") from error
        except Exception as error:
            raise _as_os_error(error) from error

    def put(self, key: str, content: bytes) -> None:
        """Keep a content."""
        path = self._path(key)
        parent = path.rpartition("/")[0]
        try:
            if self._whole:
                self._fs.pipe_file(path, content)
                return
            self._fs.makedirs(parent, exist_ok=True)
            temporary = f"{parent}/.{uuid.uuid4().hex}"
            self._fs.pipe_file(temporary, content)
            self._fs.mv(temporary, path)
        except Exception as error:
            raise _as_os_error(error) from error

    def remove(self, key: str) -> None:
        """Forget a key."""
        try:
            self._fs.rm_file(self._path(key))
        except FileNotFoundError:
            return
        except Exception as error:
            raise _as_os_error(error) from error

    def entries(self) -> Iterator[Stored]:
        """All that is kept."""
        try:
            found = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise _as_os_error(error) from error
        for path, info in found.items():
            key = path.rpartition("/")[2]
            if is_key(key):
                yield Stored(_modified_s(info), int(info.get("size") or 0), key)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"


def _modified_s(info: dict[str, Any]) -> float:
    """When an object was made: file systems call it differently."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
    return 0.0


def _as_os_error(error: Exception) -> OSError:
    """File systems raise what their client libraries raise."""
    return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
