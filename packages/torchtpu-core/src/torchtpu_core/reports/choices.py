# SPDX-License-Identifier: Apache-2.0
"""A page of ways to train, by rate and memory: which no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core.reports import page
from torchtpu_core.reports.page import BLUE, GREEN, GREY, Card, Drawing, Figure, Page, Table
from torchtpu_core.units import GIB, MIB, format_bytes, format_seconds

#: From this ratio of the largest memory to the smallest on, its axis is logarithmic.
_WIDE = 12
#: A limit more than so many times the largest choice is not drawn: all points would be at 0.
_FAR = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A way to train.

    Attributes:
        name: what distinguishes it.
        step_s: seconds of a step.
        rate: what a second trains on, in the page's unit.
        hbm_bytes: of a device at the peak.
        fits: whether that is within the device.
        on_front: whether no other that fits is better in both.
    """

    name: str
    step_s: float
    rate: float
    hbm_bytes: float
    fits: bool
    on_front: bool


def write(
    points: Sequence[Point],
    path: Path,
    *,
    title: str,
    unit: str,
    limit_bytes: float,
    failures: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes the page.

    Args:
        points: the ways that could be priced.
        path: the file.
        title: what was varied.
        unit: of their rates, such as ``tokens/s``.
        limit_bytes: what a device may allocate.
        failures: names of the others, and what each said.

    Raises:
        MissingExtraError: Plotly is not installed.
    """
    front = sorted((p for p in points if p.on_front), key=lambda p: -p.rate)
    others = sorted((p for p in points if not p.on_front), key=lambda p: (not p.fits, -p.rate))
    head = ("", "choice", "step", unit, "HBM of a device")
    tables = [
        Table("On the front (simulated)", head, _rows(front, numbered=True)),
        Table("Others (simulated)", head, _rows(others)),
    ]
    if failures:
        tables.append(Table("Could not be planned", ("choice", "why"), failures))
    content = Page(
        title=title,
        note="Every figure on this page is simulated. The front holds the choices that fit and "
        "that no other beats both in rate and in memory.",
        cards=_cards(points, front, unit, limit_bytes),
        drawings=[
            Drawing(
                "Rate and memory",
                "Higher is faster, further left is smaller; numbers are those of the first table.",
                _figure(front, others, unit, limit_bytes),
            )
        ],
        tables=tables,
    )
    page.write(content, path, "The page of a sweep")


def _rows(points: Iterable[Point], *, numbered: bool = False) -> list[tuple[str, ...]]:
    return [
        (
            str(number) if numbered else "" if point.fits else "does not fit",
            point.name,
            format_seconds(point.step_s),
            _rate(point.rate),
            format_bytes(int(point.hbm_bytes)),
        )
        for number, point in enumerate(points, 1)
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _cards(
    points: Sequence[Point], front: Sequence[Point], unit: str, limit_bytes: float
) -> list[Card]:
    fit = sum(point.fits for point in points)
    cards = [
        Card("choices", f"{len(points):,}", f"{fit:,} fit, {len(front):,} on the front, simulated"),
        Card("HBM of a device", format_bytes(int(limit_bytes)), "what may be allocated"),
    ]
    if front:
        fastest, smallest = front[0], front[-1]
        cards.insert(0, Card("fastest that fits", fastest.name, f"{_rate(fastest.rate)} {unit}"))
        size = format_bytes(int(smallest.hbm_bytes))
        cards.insert(1, Card("smallest on the front", smallest.name, f"{size}, simulated"))
    return cards


def _figure(
    front: Sequence[Point], others: Sequence[Point], unit: str, limit_bytes: float
) -> Figure:
    """Points by memory and rate, the front joined, the device's limit a line unless far off."""
    sizes = [point.hbm_bytes for point in (*front, *others)]
    largest = max(sizes, default=0.0)
    scale = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    highest = max((point.rate for point in (*front, *others)), default=1.0)
    wide = bool(sizes) and max(sizes) > _WIDE * max(min(sizes), 1.0)
    groups = (
        ("fits", [p for p in others if p.fits], {"color": BLUE, "symbol": "circle", "size": 8}),
        (
            "does not fit",
            [p for p in others if not p.fits],
            {"color": GREY, "symbol": "x", "size": 8},
        ),
        ("on the front", front, {"color": GREEN, "symbol": "circle", "size": 13}),
    )
    data: list[dict[str, Any]] = [
        _trace(name, shown, unit, marker, scale) for name, shown, marker in groups if shown
    ]
    if front:
        data[-1] |= {
            "mode": "lines+markers+text",
            "text": [f"<b>{number}</b>" for number in range(1, len(front) + 1)],
            "textposition": "top center",
            "line": {"color": GREEN, "width": 1, "dash": "dot"},
        }
    if limit_bytes <= _FAR * largest:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "limit of a device",
                "x": [limit_bytes / scale[0]] * 2,
                "y": [0, highest * 1.08],
                "line": {"color": "#CC0000", "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    x_axis: dict[str, Any] = {
        "title": {"text": f"{scale[1]} of HBM of a device at the peak (simulated)"}
    }
    x_axis |= {"type": "log", "dtick": "D2"} if wide else {"rangemode": "tozero"}
    return {
        "data": data,
        "layout": {
            "height": 520,
            "xaxis": x_axis,
            "yaxis": {"title": {"text": f"{unit} (simulated)"}, "rangemode": "tozero"},
            "legend": {"orientation": "h", "y": -0.2},
            "margin": {"b": 110},
        },
    }


def _trace(
    name: str,
    points: Sequence[Point],
    unit: str,
    marker: dict[str, Any],
    scale: tuple[int, str],
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [point.hbm_bytes / scale[0] for point in points],
        "y": [point.rate for point in points],
        "customdata": [[point.name, format_seconds(point.step_s)] for point in points],
        "hovertemplate": "%{customdata[0]}<br>%{y:,.4g} "
        + unit
        + ", step %{customdata[1]}<br>%{x:.2f} "
        + scale[1]
        + "<extra></extra>",
        "marker": {**marker, "opacity": 0.8},
    }
