# SPDX-License-Identifier: Apache-2.0
"""The torus of a plan's page: chips, and every cable by the load of its busier direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchtpu_core.ici.fabric import ABSENT, neighbour_table
from torchtpu_core.plan.result import Plan
from torchtpu_core.reports.page import Figure
from torchtpu_core.units import format_bytes

# Visible on light and on dark ground.
_LOAD = ("#56B4E9", "#E69F00", "#D55E00")
_DOWN = "#CC79A7"
SCALE = [[place / 2, colour] for place, colour in enumerate(_LOAD)]
#: Cables that are drawn at most, to keep the page light.
MOST_CABLES = 30_000
#: From where the torus is seen at first.
EYE = {"x": 1.5, "y": 1.35, "z": 0.8}
FLAT_EYE = {"x": 0.85, "y": 0.75, "z": 1.4}
#: A flat one has no walls, and its near corner is larger than the far one.
FLAT_CENTER = {"x": 0.1, "y": 0.1, "z": 0.0}
#: Links are drawn thick that are busier than the middle one by this factor.
STANDS_OUT = 1.25
#: If no larger part of the links is.
RARE = 0.1
#: Wrap-around links are stubs of this length.
STUB = 0.4


def torus(plan: Plan) -> Figure:
    """The chips of a slice and the load of their links, to be turned by hand."""
    net, traffic = plan.where.torus, plan.schedule.traffic
    places = np.array([(*net.coordinates(chip), 0, 0)[:3] for chip in range(net.chips)])
    data: list[dict[str, Any]] = []
    top = 0.0
    if traffic is not None:
        top = float(traffic.busy.max(initial=0.0))
        cables = _cables(plan)
        down = [cable for cable in cables if cable[2] is None]
        whole = [cable for cable in cables if cable[2] is not None]
        loads = np.array([cable[2] for cable in whole], dtype=float)
        above = loads > STANDS_OUT * np.median(loads) if len(loads) else loads > 0
        if above.sum() > RARE * len(above):
            above[:] = False  # what many links do does not stand out
        most = [cable for cable, high in zip(whole, above, strict=True) if high]
        rest = [cable for cable, high in zip(whole, above, strict=True) if not high]
        thin = 4 if net.chips <= 256 else 2
        drawn = (
            ("links", rest, thin),
            ("busier links", most, 8),
            ("cables that are down", down, 8),
        )
        for name, part, width in drawn:
            if part:
                data.append(_lines(name, part, places, top, width))
    data.append(
        {
            "type": "scatter3d",
            "mode": "markers",
            "name": "chips",
            **dict(zip("xyz", places.T.tolist(), strict=True)),
            "text": [f"chip {chip}" for chip in range(net.chips)],
            "hovertemplate": "%{text} (%{x}, %{y}, %{z})<extra></extra>",
            "marker": {"size": 3 if net.chips <= 512 else 2, "color": "#888888"},
            "showlegend": False,
        }
    )
    flat = sum(length > 1 for length in net.shape) < 3
    return {
        "data": data,
        "layout": {
            "height": 560,
            "margin": {"l": 0, "r": 0, "b": 10},
            "scene": {
                "aspectmode": "manual",
                "aspectratio": _box(net.shape),
                "camera": {"eye": FLAT_EYE, "center": FLAT_CENTER} if flat else {"eye": EYE},
                "zaxis": {"visible": False},
                **{
                    f"{name}axis": {
                        "title": {"text": f"axis {axis}"},
                        "dtick": max(1, length // 4),
                        "showgrid": not flat,
                        "zeroline": not flat,
                    }
                    for axis, (name, length) in enumerate(zip("xyz", net.shape, strict=False))
                    if length > 1
                },
            },
            "legend": {"orientation": "h", "y": 0.0},
        },
    }


#: A chip, the axis of a cable up from it, the load of its busier direction, and words on both.
_Cable = tuple[int, int, float | None, str]


def _cables(plan: Plan) -> list[_Cable]:
    traffic, table = plan.schedule.traffic, neighbour_table(plan.where.torus)
    assert traffic is not None
    found: list[_Cable] = []
    for axis in plan.where.torus.axes:
        for chip in range(min(len(table), MOST_CABLES // max(1, len(plan.where.torus.shape)))):
            other = int(table[chip, 2 * axis])
            if other == ABSENT:
                continue
            ways = (chip, 2 * axis), (other, 2 * axis + 1)
            if not traffic.left[ways[0]]:
                found.append((chip, axis, None, f"chips {chip} and {other}: down"))
                continue
            parts = [
                f"{traffic.busy[way]:.1%} busy, {format_bytes(int(traffic.sent_bytes[way]))}"
                for way in ways
            ]
            slow = traffic.left[ways[0]]
            note = f"<br>{slow:.0%} of its rate left" if slow < 1 else ""
            words = f"chip {chip} to {other}: {parts[0]}<br>back: {parts[1]}{note}"
            found.append((chip, axis, max(float(traffic.busy[way]) for way in ways), words))
    return found


def _box(shape: tuple[int, ...]) -> dict[str, float]:
    """The sides of the box that the torus is drawn in: the longest is one, a flat one is thin."""
    lengths = (*shape, 1, 1)[:3]
    return {
        name: max(length / max(lengths), 0.1 if length > 1 else 0.01)
        for name, length in zip("xyz", lengths, strict=True)
    }


def _lines(
    name: str, cables: list[_Cable], places: np.ndarray, top: float, width: int
) -> dict[str, Any]:
    """Segments from every chip to the next along an axis; wraps as short stubs."""
    chips, axes = (np.array(column) for column in list(zip(*cables, strict=True))[:2])
    start = places[chips].astype(float)
    end = start.copy()
    end[np.arange(len(chips)), axes] += 1
    past = end > places.max(axis=0)
    end[past] = start[past] + STUB
    points: list[list[float | None]] = [[], [], []]
    for column, one, other in zip(points, start.T.tolist(), end.T.tolist(), strict=True):
        for a, b in zip(one, other, strict=True):
            column += [a, b, None]
    words = [text for *_, text in cables for _ in range(3)]
    line: dict[str, Any] = {"width": width, "color": _DOWN}
    carried = top > 0
    if cables[0][2] is not None:
        bar = {
            "title": {"text": "busy<br>(simulated)"},
            "tickformat": ".0%" if top >= 0.05 else ".2%",
            "len": 0.7,
        }
        line |= {
            "color": [load for _, _, load, _ in cables for _ in range(3)],
            "colorscale": SCALE,
            "cmin": 0.0,
            "cmax": top or 1.0,
            "showscale": name == "links" and carried,
            "colorbar": bar,
        }
    return {
        "type": "scatter3d",
        "mode": "lines",
        "name": name,
        **dict(zip("xyz", points, strict=True)),
        "text": words,
        "hovertemplate": "%{text}<extra>simulated</extra>",
        "line": line,
        "showlegend": cables[0][2] is None,
    }
