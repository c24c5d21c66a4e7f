# SPDX-License-Identifier: Apache-2.0
"""The figures of a plan's page, as data for Plotly: timeline, roofline, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torchtpu_core.plan.placed import Placed, Unit
from torchtpu_core.plan.records import Category, Work
from torchtpu_core.plan.result import Plan, relative
from torchtpu_core.reports.page import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW, Figure
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.units import GIB, MIB

COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "backward": RED,
    "gradients": PINK,
    "optimizer": GREEN,
    "all_gather": PINK,
    "reduce_scatter": ORANGE,
    "all_reduce": YELLOW,
    "all_to_all": GREY,
    "collective_broadcast": GREY,
    "collective_permute": GREY,
}
_CATEGORIES = {
    Category.PARAMETERS: BLUE,
    Category.OPTIMIZER: GREEN,
    Category.GRADIENTS: ORANGE,
    Category.GATHERED: PINK,
    Category.HELD: YELLOW,
    Category.ACTIVATIONS: RED,
    Category.TEMPORARIES: GREY,
}
#: Bars of the timeline and points of a curve: more are merged, to keep the page light.
MOST_BARS = 6000
MOST_POINTS = 1500
#: From this length on a step is drawn in seconds.
LONG_STEP_S = 2.0
#: The limit is drawn if the peak is above this part of it: else the curve would be flat.
SHOW_LIMIT = 0.3


def _clock(plan: Plan) -> tuple[float, str]:
    """What a second is drawn as, and its unit."""
    return (1.0, "s") if plan.step_s >= LONG_STEP_S else (1e3, "ms")


def timeline(plan: Plan) -> Figure:
    """Bars on the units of the device, by phase or collective."""
    return _bars(plan, [(item.unit.value, item) for item in plan.schedule.placed])


def cores(plan: Plan) -> Figure:
    """Bars on the core of one rank of each role, by phase: who waits, and when."""
    return _bars(
        plan,
        [
            (role.name, item)
            for role in plan.roles
            for item in role.plan.schedule.placed
            if item.unit is Unit.CORE
        ],
    )


def _bars(plan: Plan, items: Sequence[tuple[str, Placed]]) -> Figure:
    """Operators as bars in named rows; short ones that follow each other are one."""
    scale, unit_name = _clock(plan)
    names = list(dict.fromkeys(row for row, _ in items))
    shortest = plan.step_s * max(1, len(names) / len(Unit)) / MOST_BARS
    groups: dict[str, list[tuple[str, float, float, str]]] = defaultdict(list)
    for row, item in items:
        name = item.op.collective or item.op.phase.value
        rows = groups[name]
        text = f"{item.op.name}<br>{relative(item.op.line)}<br>bound by {item.bound}"
        if rows and rows[-1][0] == row:
            _, start, end, old = rows[-1]
            if item.start_s - end < shortest and item.seconds < 4 * shortest:
                rows[-1] = (row, start, max(end, item.end_s), old)
                continue
        rows.append((row, item.start_s, item.end_s, text))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name.replace("_", " "),
            "y": [row for row, *_ in rows],
            "base": [start * scale for _, start, _, _ in rows],
            "x": [(end - start) * scale for _, start, end, _ in rows],
            "text": [text for *_, text in rows],
            "textposition": "none",
            "customdata": [(end - start) * scale for _, start, end, _ in rows],  # x is the end
            "hovertemplate": f"%{{text}}<br>takes %{{customdata:.4g}} {unit_name}, from "
            f"%{{base:.4f}} to %{{x:.4f}} {unit_name}<extra>%{{fullData.name}}</extra>",
            "marker": {"color": COLOURS.get(name, GREY), "line": {"width": 0}},
        }
        for name, rows in groups.items()
    ]
    height = 330 + 40 * max(0, len(names) - 3)
    return {
        "data": data,
        "layout": {
            "barmode": "overlay",
            "height": height,
            "showlegend": True,  # of one phase, too
            "xaxis": {"title": {"text": f"{unit_name} (simulated)"}},
            "yaxis": {
                "autorange": "reversed",
                "fixedrange": True,
                "automargin": True,
                "categoryorder": "array",
                "categoryarray": names,
            },
            "legend": {"orientation": "h", "y": -0.32 * 330 / height},
            "margin": {"b": 110},
        },
    }


def roofline(plan: Plan) -> Figure:
    """Operators by operations per byte and by rate, under the roofs of the device.

    Those with little or nothing in HBM are at the end of the roof.
    """
    rates = plan.where.chip
    devices = rates.devices_per_chip or 1
    peak = plan.peak_flops_per_s
    memory = rates.figure("hbm_bytes_per_s") / devices * cal.HBM_ACHIEVED.value
    ridge = peak / memory
    most = ridge * 100
    groups: dict[str, list[Placed]] = defaultdict(list)
    for item in plan.schedule.placed:
        if item.flops and item.op.work in (Work.MATMUL, Work.ATTENTION):
            groups[f"{item.op.phase.value}: {item.op.work.value}"].append(item)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "roof",
            "x": [ridge / 1000, ridge, most],
            "y": [peak / 1000 / 1e12, peak / 1e12, peak / 1e12],
            "line": {"color": "#888888", "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]
    intensity = "operations per byte of HBM; at the right end those of operands in VMEM"
    symbols = {Work.MATMUL: "circle", Work.ATTENTION: "diamond"}
    for name, items in groups.items():
        points: dict[tuple[float, float, str], float] = defaultdict(float)
        for item in items:
            x = item.flops / max(item.hbm_bytes, item.flops / most)
            key = (float(f"{x:.3g}"), float(f"{item.flops / item.seconds / 1e12:.3g}"))
            points[(*key, f"{item.op.name}<br>{relative(item.op.line)}")] += item.seconds
        longest = max(points.values())
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [x for x, _, _ in points],
                "y": [y for _, y, _ in points],
                "text": [f"{text}<br>{s * 1e3:.2f} ms" for (*_, text), s in points.items()],
                "hovertemplate": "%{text}<br>%{x:.0f} FLOP/B, %{y:.0f} TFLOP/s<extra></extra>",
                "marker": {
                    "color": COLOURS[items[0].op.phase.value],
                    "symbol": symbols[items[0].op.work],
                    "size": [6 + 22 * (s / longest) ** 0.5 for s in points.values()],
                    "opacity": 0.75,
                },
            }
        )
    return {
        "data": data,
        "layout": {
            "height": 420,
            "xaxis": {"type": "log", "dtick": 1, "title": {"text": intensity}},
            "yaxis": {"type": "log", "dtick": 1, "title": {"text": "TFLOP/s (simulated)"}},
            "legend": {"orientation": "h", "y": -0.25},
            "margin": {"b": 120},
        },
    }


def memory(plan: Plan) -> Figure:
    """HBM by category over the step, with the limit of the device."""
    scale, unit_name = _clock(plan)
    placed = (item for item in plan.schedule.placed if item.unit is not Unit.DMA)
    ends = {item.index: item.end_s for item in placed}
    count = max(map(len, plan.memory.curves.values())) - 1
    moments = [0.0]  # before each operator, and after the last
    for index in range(count):
        moments.append(max(moments[-1], ends.get(index, 0.0)))
    step = max(1, count // MOST_POINTS)
    chosen = sorted({*range(0, count, step), min(plan.memory.peak_index, count), count})
    size, size_name = (GIB, "GiB") if plan.memory.peak_bytes >= GIB else (MIB, "MiB")
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "hbm",
            "name": category.value,
            "x": [moments[i] * scale for i in chosen],
            "y": [curve[i] / size for i in chosen],
            "line": {"width": 0.5, "shape": "hv", "color": _CATEGORIES[category]},
            "hovertemplate": f"%{{y:.2f}} {size_name}<extra>%{{fullData.name}}</extra>",
        }
        for category in _CATEGORIES
        if any(curve := plan.memory.curves[category])
    ]
    if plan.memory.peak_bytes > SHOW_LIMIT * plan.memory.limit_bytes:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "limit of the device",
                "x": [0, plan.step_s * scale],
                "y": [plan.memory.limit_bytes / size] * 2,
                "line": {"color": "#CC0000", "dash": "dash"},
            }
        )
    return {
        "data": data,
        "layout": {
            "height": 420,
            "hovermode": "x unified",
            "xaxis": {"title": {"text": f"{unit_name} (simulated)"}},
            "yaxis": {
                "title": {"text": f"{size_name} per device (simulated)"},
                "rangemode": "tozero",
            },
            "legend": {"orientation": "h", "y": -0.25},
            "margin": {"b": 120},
        },
    }
