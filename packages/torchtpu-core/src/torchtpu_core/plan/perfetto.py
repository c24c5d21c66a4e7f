# SPDX-License-Identifier: Apache-2.0
"""A plan as a trace in Chrome's JSON format, which ui.perfetto.dev opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchtpu_core.plan.placed import Unit
from torchtpu_core.plan.result import Plan

_TRACKS = {Unit.CORE: 1, Unit.DMA: 2, Unit.ICI: 3, Unit.DCN: 4}


def events(plan: Plan) -> list[dict[str, Any]]:
    """Trace events: one track per unit, and HBM as a counter. Times are simulated."""
    found: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 1,
            "args": {"name": f"{plan.where.name}, rank 0 (simulated)"},
        }
    ]
    used = {Unit.CORE, *(item.unit for item in plan.schedule.placed)}
    for unit, track in _TRACKS.items():
        if unit not in used:
            continue
        found.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": 1,
                "tid": track,
                "args": {"name": f"{unit.value} (simulated)"},
            }
        )
    start = plan.recording.step()[0]
    times = {}
    for item in plan.schedule.placed:
        times[item.index] = item.end_s
        found.append(
            {
                "name": item.op.collective or item.op.name,
                "cat": item.op.phase.value,
                "ph": "X",
                "pid": 1,
                "tid": _TRACKS[item.unit],
                "ts": item.start_s * 1e6,
                "dur": item.seconds * 1e6,
                "args": {
                    "line": item.op.line,
                    "bound by": item.bound,
                    "operator": start + item.index,
                },
            }
        )
    last = len(next(iter(plan.memory.curves.values()), [0])) - 1
    for index, moment in sorted(times.items(), key=lambda pair: pair[1]):
        sizes = {str(name): curve[min(index, last)] for name, curve in plan.memory.curves.items()}
        found.append(
            {
                "name": "HBM bytes (simulated)",
                "ph": "C",
                "pid": 1,
                "ts": moment * 1e6,
                "args": sizes,
            }
        )
    return found


def write(plan: Plan, path: Path) -> None:
    """Writes the trace."""
    path.write_text(json.dumps({"traceEvents": events(plan)}), encoding="utf-8")
