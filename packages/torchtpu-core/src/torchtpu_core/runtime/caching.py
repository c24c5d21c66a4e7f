# SPDX-License-Identifier: Apache-2.0
"""The program cache of this process, made from the settings at first use."""

from __future__ import annotations

import threading

from torchtpu_core.cache import places
from torchtpu_core.cache.program_cache import ProgramCache, place_or_warn
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
    return ProgramCache(
        place_or_warn(places.directory, f"the cache directory {chosen.cache_dir}"),
        place_or_warn(places.shared, f"the shared cache {chosen.cache_url}"),
        host=fingerprints.host(),
        secret=chosen.cache_key,
        wait_s=chosen.cache_wait_s,
    )
