# SPDX-License-Identifier: Apache-2.0
"""`torchtpu plan --sweep`: a script with several values of its own options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from torchtpu_core.cli.console import print_table
from torchtpu_core.cli.failure import DOES_NOT_FIT
from torchtpu_core.errors import PlanError
from torchtpu_core.plan.script_sweep import Tried, front, options_of, try_all, without_effect
from torchtpu_core.reports import choices
from torchtpu_core.units import format_bytes, format_seconds


def show(
    command: Sequence[str],
    sweeps: Sequence[str],
    json_: Path | None,
    html: Path | None,
    title: str,
) -> None:
    """Plans every combination of options and prints them, those of the front marked.

    Args:
        command: ``torchtpu plan`` with its options, up to the script's own arguments.
        sweeps: the options to vary.
        json_: where to write all figures.
        html: where to draw them.
        title: of the page.

    Raises:
        PlanError: none of the choices could be planned.
        typer.Exit: with 3, as a plan's, if none of them fits.
    """
    tried: list[Tried] = []
    count = len(options_of(sweeps))
    for choice in try_all(command, sweeps):
        tried.append(choice)
        typer.echo(f"{len(tried)} of {count} choices are over: {choice.name}", err=True)
    best = front(tried)
    rows = []
    for choice in tried:
        if not choice.plan:
            rows.append((choice.name, "failed", "", "", ""))
            continue
        plan, hbm = choice.plan, choice.plan["hbm"]
        mark = "on the front" if choice in best else ""
        verdict = mark if hbm["fits"] else "does not fit"
        rows.append(
            (
                choice.name,
                format_seconds(plan["step_s"]),
                f"{choice.rate[0]:,.0f}" if choice.rate[0] else "-",
                format_bytes(hbm["peak_bytes"]),
                verdict,
            )
        )
    counted = {choice.rate[1] for choice in tried if choice.plan and choice.rate[0]}
    head = " or ".join(sorted(counted)) or "tokens/s"
    print_table(("options", "step", head, "HBM", ""), rows)
    failed = [choice for choice in tried if not choice.plan]
    for choice in failed:
        typer.echo(f"{choice.name} failed: {choice.failure}")
    if failed:
        typer.echo(f"{len(failed)} of {len(tried)} choices failed and have no figures.")
    for name in without_effect(tried):
        typer.echo(f"{name} changes no figure: does the script read it?")
    typer.echo("All figures are simulated.")
    if json_ is not None:
        figures = [
            {"options": t.options, "on_front": t in best, "failure": t.failure, "plan": t.plan}
            for t in tried
        ]
        text = json.dumps({"simulated": True, "choices": figures}, indent=1)
        json_.write_text(text + "\n", encoding="utf-8")
    if not any(choice.plan for choice in tried):
        raise PlanError("none of the choices could be planned; what each said is above.")
    if html is not None:
        _page(tried, best, head if counted else "steps/s", html, title)
    if not best:
        raise typer.Exit(DOES_NOT_FIT)


def _page(tried: Sequence[Tried], best: Sequence[Tried], unit: str, path: Path, title: str) -> None:
    """Draws the choices of a sweep by rate and memory."""
    planned = [choice for choice in tried if choice.plan]
    points = [
        choices.Point(
            name=choice.name,
            step_s=choice.plan["step_s"],
            rate=1 / choice.cost[0],
            hbm_bytes=choice.plan["hbm"]["peak_bytes"],
            fits=choice.fits,
            on_front=choice in best,
        )
        for choice in planned
    ]
    choices.write(
        points,
        path,
        title=title,
        unit=unit,
        limit_bytes=planned[0].plan["hbm"]["limit_bytes"],
        failures=[(choice.name, choice.failure) for choice in tried if not choice.plan],
    )
