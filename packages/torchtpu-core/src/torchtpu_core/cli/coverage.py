# SPDX-License-Identifier: Apache-2.0
"""`torchtpu coverage`: the lowering tables, one line per overload."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Annotated

import typer

from torchtpu_core import plugins
from torchtpu_core.cli.console import print_table
from torchtpu_core.lowering.table import Kind, Lowering

_MEANING = {
    Kind.NATIVE: "a function on JAX values",
    Kind.DECOMPOSITION: "made of other overloads when a program is built",
    Kind.COMPOSITE: "made of other ops at every call: its shape depends on data",
    Kind.HOST: "runs on the CPU",
}


class Layout(enum.StrEnum):
    """How the list is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"


def all_rows() -> list[tuple[str, Lowering]]:
    """(owner, row) of core's tables and of every plugin's, by overload."""
    from torchtpu_core.runtime import tables

    rows = [("torchtpu-core", row) for row in tables.core_rows()]
    for plugin, found in plugins.collect("torchtpu_register_lowerings"):
        rows += [(plugin, row) for row in found]
    return sorted(rows, key=lambda pair: pair[1].overload)


def why(row: Lowering) -> str:
    """Why the overload runs as it does."""
    return row.reason or _MEANING[row.kind]


def coverage(
    pattern: Annotated[str, typer.Argument(help="Only overloads that contain this text.")] = "",
    kind: Annotated[Kind | None, typer.Option(help="Only this kind.")] = None,
    layout: Annotated[Layout, typer.Option(help="How to print.")] = Layout.TABLE,
) -> None:
    """List the overloads that have a lowering, how they run and why.

    In-place and out= forms of a listed overload are served by the same row.
    """
    chosen = [
        (row.overload, row.kind.value, owner, why(row))
        for owner, row in all_rows()
        if pattern in row.overload and kind in (None, row.kind)
    ]
    header = ("overload", "how", "from", "why")
    if layout is Layout.TABLE:
        print_table(header, chosen)
        counts = Counter(line[1] for line in chosen)
        summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        typer.echo(f"{len(chosen)} overloads: {summary or 'none'}")
    elif layout is Layout.MARKDOWN:
        for cells in (header, ("---",) * len(header), *chosen):
            typer.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    else:
        for cells in (header, *chosen):
            typer.echo(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
