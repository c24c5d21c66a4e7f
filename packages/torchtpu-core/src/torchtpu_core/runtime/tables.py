# SPDX-License-Identifier: Apache-2.0
"""The lowering tables of this process: core's and those of plugins, joined."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping

from torchtpu_core import lowering, plugins
from torchtpu_core.errors import LoweringTableError
from torchtpu_core.lowering.table import Lowering

CORE = "torchtpu-core"
_current: dict[str, Lowering] = {}
_of_core: set[str] = set()


def current() -> Mapping[str, Lowering]:
    """All rows by overload name."""
    return _current


def clear() -> None:
    """Forget all rows: a start that failed half-way begins anew."""
    _current.clear()
    _of_core.clear()


def is_core(row: Lowering) -> bool:
    """Whether a row is one of core's, so that core's source says all that it does."""
    return row.overload in _of_core and _current[row.overload] is row


def core_rows() -> Iterable[Lowering]:
    """The rows of every family file of core: each module of `lowering` with a ``TABLE``."""
    for module in pkgutil.iter_modules(lowering.__path__):
        table = getattr(importlib.import_module(f"{lowering.__name__}.{module.name}"), "TABLE", ())
        yield from table


def without_a_device() -> dict[str, Lowering]:
    """Core's rows and those of plugins, for a program that is lowered but does not run."""
    found = {row.overload: row for row in core_rows()}
    for _, rows in plugins.collect("torchtpu_register_lowerings"):
        for row in rows:
            found.setdefault(row.overload, row)
    return found


def add(rows: Iterable[Lowering], owner: str) -> None:
    """Join rows to the tables.

    Raises:
        LoweringTableError: an overload has two rows.
    """
    for row in rows:
        if row.overload in _current:
            raise LoweringTableError(
                f"{row.overload} has two lowerings; the second is from {owner}. "
                "Remove one: a table never silently replaces another's row."
            )
        _current[row.overload] = row
        if owner == CORE:
            _of_core.add(row.overload)
