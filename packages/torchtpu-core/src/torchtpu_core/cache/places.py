# SPDX-License-Identifier: Apache-2.0
"""The places that the settings name."""

from __future__ import annotations

from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.shared import SharedStore
from torchtpu_core.env_vars import settings


def directory() -> DirectoryStore | None:
    """The directory of this host, None if there is none.

    Raises:
        UnsafeDirectoryError: other users can write there, and entries are not signed.
    """
    chosen = settings()
    if chosen.cache_dir is None:
        return None
    trusted = bool(chosen.cache_key)
    return DirectoryStore(chosen.cache_dir, chosen.cache_max_bytes, trusted=trusted)


def shared() -> SharedStore | None:
    """The root that many hosts share, None if there is none.

    Raises:
        ValueError: its URL has an unknown protocol.
        ImportError: the protocol's file system is not installed.
    """
    url = settings().cache_url
    return None if url is None else SharedStore(url)
