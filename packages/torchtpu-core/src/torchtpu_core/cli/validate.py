# SPDX-License-Identifier: Apache-2.0
"""`torchtpu validate`: published measurements against the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchtpu_core.cli.console import print_table
from torchtpu_core.cli.failure import shown
from torchtpu_core.cli.outputs import writable
from torchtpu_core.errors import SpecError


@shown
def validate(
    rows: Annotated[
        Path | None, typer.Option(help="CSV of published figures: id, metric, value, unit.")
    ] = None,
    specs: Annotated[
        Path | None, typer.Option(help="Folder of spec files (TOML, JSON or YAML).")
    ] = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", help="Write every prediction to this file.", callback=writable),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(help="Write the table as Markdown to this file.", callback=writable),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print every key of a spec file.")] = False,
) -> None:
    """Predict published measurements from their configuration, and compare.

    Every figure is simulated. A row without a spec, or beyond the model, is listed with
    the reason; so is one with a mistake, in itself or its spec, which ends the command with 1
    after all others are evaluated.
    """
    from torchtpu_core.validation import compare, lost_specs, read_rows, table
    from torchtpu_core.workloads import read_specs, spec_reference

    if keys:
        typer.echo(spec_reference.text())
        return
    if rows is None or specs is None:
        raise SpecError("give --rows ROWS.csv and --specs FOLDER, or --keys.")
    read, known = read_rows(rows), read_specs(specs)
    found = compare(read, known)
    print_table(table.HEAD, [table.cells(item) for item in found if item.predicted is not None])
    for line in table.summary_lines(found):
        typer.echo(line)
    lost = lost_specs(read, known)
    if lost:
        typer.echo(f"{len(lost)} spec files with a mistake that no row is known to be served by:")
    for spec in lost:
        typer.echo(f"  {spec.unmodelled}")
    if json_ is not None:
        json_.write_text(json.dumps(table.as_json(found), indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(table.markdown(found), encoding="utf-8")
    if all(item.predicted is None for item in found):
        raise SpecError("none of the rows is modelled; the reasons are above.")
    wrong = sum(item.mistake for item in found)
    if wrong or lost:
        raise SpecError(
            f"{wrong} rows and {len(lost)} further spec files have a mistake; the reasons are "
            "above, and all other rows are evaluated."
        )
