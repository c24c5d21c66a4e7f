# SPDX-License-Identifier: Apache-2.0
"""Printing tables: folded to a terminal's width, one line per row into a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Wider than any row: what reads the pipe gets whole lines.
_PIPE_COLUMNS = 10_000


def console() -> Console:
    """The console of standard output."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print rows under a header; an empty header prints none."""
    table = Table(box=None, pad_edge=False, show_header=any(header))
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console().print(table)
