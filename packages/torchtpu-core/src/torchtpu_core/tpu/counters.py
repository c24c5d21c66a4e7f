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
        ``ops`` recorded; program ``runs``; ``programs`` that were not in memory when a
        trace needed them; ``compiles``, those of them that XLA compiled; ``memory_hits``,
        ``directory_hits`` and ``shared_hits`` of the program cache; ``donated_bytes``; of
        Fused Eager: ``fused_ops`` that ran in programs of several, ``replayed_ops`` that ran
        one by one because their stream had no program, and ``flushes`` by reason; and
        ``fallbacks``: host fallbacks by overload.
    """
    values: dict[str, Any] = {k: v - _base[k] for k, v in _numbers().items()}
    values["flushes"] = dict(_flushes() - _base_flushes)
    values["fallbacks"] = dict(_fallbacks() - _base_fallbacks)
    return values


def compiled() -> Counter[str]:
    """What ``compiles`` of `counters` counts, by the names of the programs."""
    return _compiled() - _base_compiled


_base_compiled: Counter[str] = Counter()
_base_fallbacks: Counter[str] = Counter()
_base_flushes: Counter[str] = Counter()


def reset_counters() -> None:
    """Start counting from zero."""
    _base.update({k: v - _base[k] for k, v in _numbers().items()})
    _base_compiled.clear()
    _base_compiled.update(_compiled())
    _base_fallbacks.clear()
    _base_fallbacks.update(_fallbacks())
    _base_flushes.clear()
    _base_flushes.update(_flushes())


def _numbers() -> dict[str, int]:
    numbers: dict[str, int] = dict(_C.run_counters())
    numbers["programs"] = numbers.pop("compiles")
    numbers |= {"compiles": 0, "directory_hits": 0, "shared_hits": 0}
    if _C.is_started():
        from torchtpu_core.runtime import caching

        found = caching.hits()
        numbers["compiles"] = _compiled().total()
        numbers["memory_hits"] += found.pop("memory")
        numbers |= {f"{level}_hits": count for level, count in found.items()}
    return numbers


def _compiled() -> Counter[str]:
    if not _C.is_started():
        return Counter()
    from torchtpu_core.runtime import compiling

    return Counter(compiling.compiled)


def _flushes() -> Counter[str]:
    return Counter(_C.flush_counts())


def _fallbacks() -> Counter[str]:
    if not _C.is_started():
        return Counter()
    from torchtpu_core.runtime.fallbacks import counts

    return Counter(counts)
