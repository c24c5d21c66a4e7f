# SPDX-License-Identifier: Apache-2.0
"""Who wants to know about compilations: `explain` and the option ``debug_callback``."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

_listeners: list[Callable[[str, str, float], None]] = []
_callbacks: dict[str, Callable[[str, str], None]] = {}


def compiled(name: str, stablehlo: str, seconds: float) -> None:
    """A program was compiled; see the hook ``torchtpu_after_compile``."""
    for listener in tuple(_listeners):
        listener(name, stablehlo, seconds)
    for graph, callback in tuple(_callbacks.items()):
        if f"{graph}." in name:
            callback(name, stablehlo)


def call_back(graph: str, callback: Callable[[str, str], None]) -> None:
    """Call `callback` with the name and the text of each new program of `graph`."""
    _callbacks[graph] = callback


@contextlib.contextmanager
def recording() -> Iterator[list[tuple[str, float, str]]]:
    """Collect (name, seconds, why) of each program compiled inside the block."""
    found: list[tuple[str, float, str]] = []
    names: Counter[str] = Counter()

    def listen(name: str, stablehlo: str, seconds: float) -> None:
        names[name] += 1
        times = names[name]
        more = f"program {times} of this name: another graph, or new sizes or types"
        why = "first call" if times == 1 else more
        found.append((name, seconds, why))

    _listeners.append(listen)
    try:
        yield found
    finally:
        _listeners.remove(listen)
