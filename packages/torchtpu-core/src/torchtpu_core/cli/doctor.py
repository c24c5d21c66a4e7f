# SPDX-License-Identifier: Apache-2.0
"""`torchtpu doctor`: is the installation sound, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator

import typer
from rich.text import Text

from torchtpu_core.cli import device_checks, installation
from torchtpu_core.cli.console import print_table
from torchtpu_core.cli.findings import Finding, Level

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def examine() -> Iterator[Finding]:
    """Everything there is to say, in the order of a fresh installation's steps."""
    yield from installation.versions()
    yield from installation.compiler()
    yield from installation.conflicts()
    yield from device_checks.settings()
    yield from device_checks.memory()
    yield from device_checks.registration()
    yield from device_checks.loaded_plugins()
    yield from device_checks.device()


def doctor() -> None:
    """Check the installation; exit code 1 if something has to be fixed."""
    findings = list(examine())
    rows = []
    for finding in findings:
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\nfix: {finding.fix}", style="bold")
        level = Text(finding.level.value, style=_STYLES[finding.level])
        rows.append((level, finding.topic, text))
    print_table(("", "", ""), rows)
    count = sum(finding.level is Level.ERROR for finding in findings)
    typer.echo("No errors." if count == 0 else f"{count} error(s).")
    raise typer.Exit(code=min(count, 1))
