# SPDX-License-Identifier: Apache-2.0
"""What a place holds, and whether it is sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_core.cache.entry import Entry, Kind, decode
from torchtpu_core.cache.store import Store, Stored
from torchtpu_core.errors import DamagedEntryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An entry that would not be used.

    Attributes:
        key: its key.
        why: what is wrong.
        is_damage: it came to harm. Else it is a trace whose executable was removed, or found no
            room on the disk; its program is compiled again when it is needed.
    """

    key: str
    why: str
    is_damage: bool = True


def headers(store: Store) -> Iterator[tuple[Stored, Entry | None]]:
    """Each kept entry with its header, None for one that cannot be read."""
    for stored in store.entries():
        try:
            yield stored, store.header(stored.key)
        except DamagedEntryError:
            yield stored, None
        except FileNotFoundError:  # another process pruned it
            continue


def faults(store: Store, secret: bytes) -> Iterator[Fault]:
    """Every damaged entry, and every trace whose executable is gone."""
    needs: dict[str, str] = {}
    present: set[str] = set()
    for stored in list(store.entries()):
        try:
            content = store.read(stored.key)
            if content is None:
                continue
            entry = decode(content, stored.key, secret)
        except DamagedEntryError as error:
            yield Fault(key=stored.key, why=str(error))
            continue
        present.add(entry.key)
        if entry.kind is Kind.TRACE:
            needs[entry.key] = str(entry.facts.get("executable"))
    for key, executable in needs.items():
        if executable not in present:
            yield Fault(key=key, why="its executable is not here", is_damage=False)
