# SPDX-License-Identifier: Apache-2.0
"""`torchtpu sweep` and `torchtpu scale`: a spec file's model trained in other ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtpu_core.cli.console import print_table
from torchtpu_core.cli.failure import shown
from torchtpu_core.cli.outputs import writable
from torchtpu_core.units import format_bytes

if TYPE_CHECKING:
    from torchtpu_core.workloads import Spec
    from torchtpu_core.workloads.sweep import Choice

SpecFile = Annotated[Path, typer.Argument(help="A spec file with \\[model] and \\[train] tables.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the figures here.", callback=writable)
]

HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page with the figures drawn here.", callback=writable),
]


@shown
def sweep(spec: SpecFile, json_: JsonFile = None, html: HtmlFile = None) -> None:
    """Try meshes, batches and remat; print the front of time per token and memory (simulated)."""
    from torchtpu_core.workloads import read_spec
    from torchtpu_core.workloads.memory import limit_bytes
    from torchtpu_core.workloads.sweep import check, choices, front

    read = read_spec(spec)
    check(read)
    found = list(choices(read))
    best = front(found)
    rows = [
        (
            choice.name,
            f"{choice.step.step_s:.3g} s",
            f"{choice.step.tokens_per_s:,.0f}",
            f"{choice.step.mfu:.1%}",
            format_bytes(int(choice.hbm_bytes)),
        )
        for choice in best
    ]
    print_table(("choice", "step", "tokens/s", "MFU", "HBM per chip"), rows)
    limit = format_bytes(limit_bytes(read))
    fit = sum(choice.fits for choice in found)
    typer.echo(
        f"{len(found)} choices, {fit} fit in {limit} per chip, {len(best)} are on the front "
        "(all simulated)."
    )
    if not best:
        nearest = min(found, key=lambda choice: choice.hbm_bytes)
        typer.echo(
            f"None fits. The smallest, {nearest.name}, needs "
            f"{format_bytes(int(nearest.hbm_bytes))} per chip: use more chips.",
            err=True,
        )
    if json_ is not None:
        figures = [
            {
                "choice": choice.name,
                "step_s": choice.step.step_s,
                "tokens_per_s": choice.step.tokens_per_s,
                "mfu": choice.step.mfu,
                "hbm_bytes": choice.hbm_bytes,
                "fits": choice.fits,
                "on_front": choice in best,
            }
            for choice in found
        ]
        text = json.dumps({"simulated": True, "choices": figures}, indent=1)
        json_.write_text(text + "\n", encoding="utf-8")
    if html is not None:
        _page_of_choices(read, found, best, html)
    if not best:
        raise typer.Exit(1)


def _page_of_choices(
    spec: Spec, found: Sequence[Choice], best: Sequence[Choice], path: Path
) -> None:
    from torchtpu_core.reports import choices
    from torchtpu_core.workloads.memory import limit_bytes

    points = [
        choices.Point(
            name=choice.name,
            step_s=choice.step.step_s,
            rate=choice.step.tokens_per_s,
            hbm_bytes=choice.hbm_bytes,
            fits=choice.fits,
            on_front=choice in best,
        )
        for choice in found
    ]
    limit = limit_bytes(spec)
    choices.write(points, path, title=_title(spec), unit="tokens/s", limit_bytes=limit)


def _title(spec: Spec) -> str:
    """The model and where it is trained."""
    where = spec.hardware
    slices = f" x {where.slices} slices" if where.slices > 1 else ""
    assert spec.model is not None
    return (
        f"{spec.model.layers} layers of width {spec.model.emb:,} on "
        f"{where.chip}:{where.topology}{slices}"
    )


@shown
def scale(
    spec: SpecFile,
    most: Annotated[int, typer.Option(help="Most chips.", min=1)] = 100_000,
    json_: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Scaling curves from one chip on: fixed work per chip, and fixed work (simulated)."""
    from torchtpu_core.reports import scaling
    from torchtpu_core.workloads import read_spec
    from torchtpu_core.workloads.sweep import check, curve

    read = read_spec(spec)
    check(read)
    points = curve(read, most)
    shares = scaling.efficiency([(point, point.weak) for point in points])
    rows, figures = [], []
    for point, share in zip(points, shares, strict=True):
        weak, strong = point.weak, point.strong
        slices = f" x {point.slices}" if point.slices > 1 else ""
        rows.append(
            (
                f"{point.chips:,}",
                f"{point.topology}{slices}",
                f"{weak.step_s:.3g} s",
                f"{weak.tokens_per_s:,.0f}",
                f"{share:.0%}",
                f"{strong.step_s:.3g} s" if strong else "-",
            )
        )
        figures.append(
            {
                "chips": point.chips,
                "topology": point.topology,
                "slices": point.slices,
                "fixed_work_per_chip_step_s": weak.step_s,
                "fixed_work_per_chip_tokens_per_s": weak.tokens_per_s,
                "efficiency": share,
                "fixed_work_step_s": strong.step_s if strong else None,
            }
        )
    head = ("chips", "slice", "step", "tokens/s", "efficiency", "step, fixed work")
    print_table(head, rows)
    typer.echo("All figures are simulated; memory is not checked here.")
    if json_ is not None:
        text = json.dumps({"simulated": True, "points": figures}, indent=1)
        json_.write_text(text + "\n", encoding="utf-8")
    if html is not None:
        scaling.write(points, html, title=_title(read))
