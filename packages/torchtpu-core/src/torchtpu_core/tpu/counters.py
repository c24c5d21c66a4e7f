# SPDX-License-Identifier: Apache-2.0
"""What the device did so far, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torchtpu_core import _C

_base: Counter[str] = Counter()


def counters() -> dict[str, Any]:
    """Counts since the start or the last `reset_counters`.

    Returns:
        ``ops`` recorded, program ``runs``, ``compiles`` (programs that were not in memory:
        ``disk_hits`` of them came from the cache on disk, the others from XLA),
        ``memory_hits`` of the program cache, ``donated_bytes``, and ``fallbacks``: host
        fallbacks by overload.
    """
    values: dict[str, Any] = {k: v - _base[k] for k, v in _numbers().items()}
    values["fallbacks"] = dict(_fallbacks() - Counter(_base_fallbacks))
    return values


_base_fallbacks: Counter[str] = Counter()


def reset_counters() -> None:
    """Start counting from zero."""
    _base.update({k: v - _base[k] for k, v in _numbers().items()})
    _base_fallbacks.clear()
    _base_fallbacks.update(_fallbacks())


def _numbers() -> dict[str, int]:
    numbers: dict[str, int] = dict(_C.run_counters())
    numbers["disk_hits"] = 0
    if _C.is_started():
        from torchtpu_core.runtime import disk_cache

        numbers["disk_hits"] = disk_cache.hits
    return numbers


def _fallbacks() -> Counter[str]:
    if not _C.is_started():
        return Counter()
    from torchtpu_core.runtime.fallbacks import counts

    return Counter(counts)
