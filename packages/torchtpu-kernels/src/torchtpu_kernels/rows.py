# SPDX-License-Identifier: Apache-2.0
"""Rows of ops that users define: into the lowering tables, whenever that is."""

from __future__ import annotations

from torchtpu_core.lowering.table import Lowering
from torchtpu_core.tpu.devices import has_started

_waiting: list[Lowering] = []


def serve(row: Lowering) -> None:
    """Add a row, now or when the device starts.

    Raises:
        LoweringTableError: the op has a row already.
    """
    if not has_started():
        _waiting.append(row)
        return
    from torchtpu_core.runtime import startup, tables

    tables.add([row], "torchtpu-kernels")
    startup.register(row)


def waiting() -> list[Lowering]:
    """The rows that were added before the device started."""
    return list(_waiting)
