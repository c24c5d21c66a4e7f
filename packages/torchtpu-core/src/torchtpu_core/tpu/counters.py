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
        ``ops`` recorded, program ``runs``, ``compiles``, ``memory_hits`` of the program
        cache, ``donated_bytes``, and ``fallbacks``: host fallbacks by overload.
    """
    values: dict[str, Any] = {k: v - _base[k] for k, v in _C.run_counters().items()}
    values["fallbacks"] = dict(_fallbacks() - Counter(_base_fallbacks))
    return values


_base_fallbacks: Counter[str] = Counter()


def reset_counters() -> None:
    """Start counting from zero."""
    _base.update({k: v - _base[k] for k, v in _C.run_counters().items()})
    _base_fallbacks.clear()
    _base_fallbacks.update(_fallbacks())


def _fallbacks() -> Counter[str]:
    if not _C.is_started():
        return Counter()
    from torchtpu_core.runtime.fallbacks import counts

    return Counter(counts)
