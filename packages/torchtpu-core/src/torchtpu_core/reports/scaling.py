# SPDX-License-Identifier: Apache-2.0
"""A page of scaling curves: the same work per chip, and the same work, on ever more chips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu_core.reports import page
from torchtpu_core.reports.page import BLUE, GREY, RED, Card, Drawing, Figure, Page, Table
from torchtpu_core.units import format_seconds

if TYPE_CHECKING:
    from torchtpu_core.workloads.prediction import StepPrediction
    from torchtpu_core.workloads.sweep import Scale

_WEAK, _STRONG = "fixed work per chip", "fixed work"
#: One number of chips, and the step there.
_At = tuple["Scale", "StepPrediction"]


def write(points: Sequence[Scale], path: Path, *, title: str) -> None:
    """Writes the page.

    Args:
        points: from the smallest number of chips on.
        path: the file.
        title: what is trained.

    Raises:
        MissingExtraError: Plotly is not installed.
    """
    curves = {
        _WEAK: [(point, point.weak) for point in points],
        _STRONG: [(point, point.strong) for point in points if point.strong is not None],
    }
    head = ("chips", "slice", "step", "tokens/s", "efficiency", "step, fixed work", "efficiency")
    content = Page(
        title=title,
        note="Every figure on this page is simulated; memory is not checked here. Efficiency is "
        "tokens per second and chip over those of the smallest slice.",
        cards=_cards(curves),
        drawings=[
            Drawing(
                "Efficiency",
                "What is left of each chip's rate. Where a chip gets less than one sequence, fixed "
                "work takes it for granted that sequences are split at no further cost.",
                _efficiencies(curves),
            ),
            Drawing("Throughput", "The dashed line would be perfect scaling.", _rates(curves)),
        ],
        tables=[Table("Figures (simulated)", head, [_row(point, points) for point in points])],
    )
    page.write(content, path, "The page of scaling curves")


def efficiency(points: Sequence[_At]) -> list[float]:
    """Tokens per second and chip over those of the first point."""
    rates = [step.tokens_per_s / point.chips for point, step in points]
    return [rate / rates[0] for rate in rates]


def _name(point: Scale) -> str:
    return point.topology + (f" x {point.slices}" if point.slices > 1 else "")


def _row(point: Scale, points: Sequence[Scale]) -> tuple[str, ...]:
    first = points[0]
    weak = efficiency([(first, first.weak), (point, point.weak)])[1]
    strong = ("-", "-")
    if point.strong and first.strong:
        share = efficiency([(first, first.strong), (point, point.strong)])[1]
        strong = (format_seconds(point.strong.step_s), f"{share:.0%}")
    return (
        f"{point.chips:,}",
        _name(point),
        format_seconds(point.weak.step_s),
        f"{point.weak.tokens_per_s:,.0f}",
        f"{weak:.0%}",
        *strong,
    )


def _cards(curves: dict[str, list[_At]]) -> list[Card]:
    cards = []
    for name, points in curves.items():
        if not points:
            continue
        last, step = points[-1]
        cards += [
            Card(
                f"{name}, {last.chips:,} chips",
                f"{efficiency(points)[-1]:.0%}",
                f"efficiency over that of {_name(points[0][0])}, simulated",
            ),
            Card(
                f"{name}, {last.chips:,} chips",
                format_seconds(step.step_s),
                f"step, {step.tokens_per_s:,.0f} tokens/s, simulated",
            ),
        ]
    return cards


def _efficiencies(curves: dict[str, list[_At]]) -> Figure:
    def shares(points: Sequence[_At]) -> list[float]:
        return [100 * share for share in efficiency(points)]

    y_axis = {"title": {"text": "efficiency in % (simulated)"}, "range": [0, 108]}
    return _figure(_lines(curves, shares, "%{y:.1f} %"), y_axis)


def _rates(curves: dict[str, list[_At]]) -> Figure:
    def rates(points: Sequence[_At]) -> list[float]:
        return [step.tokens_per_s for _, step in points]

    first, last = curves[_WEAK][0], curves[_WEAK][-1]
    chips = [first[0].chips, last[0].chips]
    ideal = {
        "type": "scatter",
        "mode": "lines",
        "name": "perfect",
        "x": chips,
        "y": [first[1].tokens_per_s * count / chips[0] for count in chips],
        "line": {"color": GREY, "dash": "dash", "width": 1},
        "hoverinfo": "skip",
    }
    y_axis = {"title": {"text": "tokens/s (simulated)"}, "type": "log", "dtick": 1}
    return _figure([ideal, *_lines(curves, rates, "%{y:,.4g} tokens/s")], y_axis)


def _lines(
    curves: dict[str, list[_At]], values: Callable[[Sequence[_At]], list[float]], shown: str
) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [point.chips for point, _ in points],
            "y": values(points),
            "customdata": [[_name(point), format_seconds(step.step_s)] for point, step in points],
            "hovertemplate": "%{x:,} chips, %{customdata[0]}<br>"
            + shown
            + ", step %{customdata[1]}<extra>%{fullData.name}</extra>",
            "line": {"color": colour},
        }
        for (name, points), colour in zip(curves.items(), (BLUE, RED), strict=True)
        if points
    ]


def _figure(data: list[dict[str, Any]], y_axis: dict[str, Any]) -> Figure:
    return {
        "data": data,
        "layout": {
            "height": 420,
            "xaxis": {"type": "log", "dtick": 1, "title": {"text": "chips"}},
            "yaxis": y_axis,
            "legend": {"orientation": "h", "y": -0.25},
            "margin": {"b": 110},
        },
    }
