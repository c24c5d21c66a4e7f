# SPDX-License-Identifier: Apache-2.0
"""The program cache of this process, made from the settings at first use."""

from __future__ import annotations

import threading

from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.program_cache import ProgramCache, place_or_warn
from torchtpu_core.cache.shared import SharedStore
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime import fingerprints

_lock = threading.Lock()
_cache: ProgramCache | None = None


def cache() -> ProgramCache:
    """The cache."""
    global _cache
    if _cache is None:
        with _lock:
            if _cache is None:
                _cache = _make()
    return _cache


def reset() -> None:
    """Forget the cache and its counts: the next use reads the settings again."""
    global _cache
    with _lock:
        _cache = None


def hits() -> dict[str, int]:
    """Programs that did not have to be compiled, by level; makes nothing."""
    counted = _cache.hits if _cache is not None else {}
    return {level: counted.get(level, 0) for level in ("memory", "directory", "shared")}


def _make() -> ProgramCache:
    chosen = settings()
    directory = shared = None
    if chosen.cache_dir is not None:
        root, bound = chosen.cache_dir, chosen.cache_max_bytes
        directory = place_or_warn(
            lambda: DirectoryStore(root, bound, trusted=bool(chosen.cache_key)),
            f"the cache directory {root}",
        )
    if chosen.cache_url is not None:
        url = chosen.cache_url
        shared = place_or_warn(lambda: SharedStore(url), f"the shared cache {url}")
    return ProgramCache(
        directory,
        shared,
        host=fingerprints.host(),
        secret=chosen.cache_key,
        wait_s=chosen.cache_wait_s,
    )
