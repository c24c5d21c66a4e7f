# SPDX-License-Identifier: Apache-2.0
"""A plan as a trace in Chrome's JSON format, which ui.perfetto.dev opens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtpu_core.plan.placed import Placed, Unit
from torchtpu_core.plan.result import Plan

_TRACKS = {Unit.CORE: 1, Unit.DMA: 2, Unit.ICI: 3, Unit.DCN: 4}
#: Numbers that the tracks of one unit may have.
_MOST_LANES = 1000
#: Ends and starts this close are the same.
_ROUNDING_S = 1e-12


def events(plan: Plan) -> list[dict[str, Any]]:
    """Trace events: one track per unit, and HBM as a counter. Times are simulated.

    What a unit does beside something else has a track of its own: slices of one track must not
    overlap.
    """
    slices = f" x {plan.slices} slices" if plan.slices > 1 else ""
    title = f"{plan.where.name}{slices}, rank {plan.recording.rank} (simulated)"
    found: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": title}}
    ]
    lanes = _lanes(plan.schedule.placed)
    used = {
        (Unit.CORE, 0),
        *((p.unit, n) for p, n in zip(plan.schedule.placed, lanes, strict=True)),
    }
    for unit, lane in sorted(used, key=lambda pair: _track(*pair)):
        beside = f", beside {lane}" if lane else ""
        found.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": 1,
                "tid": _track(unit, lane),
                "args": {"name": f"{unit.value}{beside} (simulated)"},
            }
        )
    start = plan.recording.step()[0]
    times = {}
    for item, lane in zip(plan.schedule.placed, lanes, strict=True):
        if item.unit is not Unit.DMA:  # copies end when later operators run
            times[item.index] = item.end_s
        found.append(
            {
                "name": item.op.collective or item.op.name,
                "cat": item.op.phase.value,
                "ph": "X",
                "pid": 1,
                "tid": _track(item.unit, lane),
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


def _track(unit: Unit, lane: int) -> int:
    """The number of a track; those of one unit follow each other."""
    return _TRACKS[unit] * _MOST_LANES + lane


def _lanes(placed: Sequence[Placed]) -> list[int]:
    """For each operator the first track of its unit on which nothing runs when it starts."""
    ends: dict[Unit, list[float]] = defaultdict(list)
    lanes = [0] * len(placed)
    for index in sorted(range(len(placed)), key=lambda number: placed[number].start_s):
        item, busy = placed[index], ends[placed[index].unit]
        free = (n for n, end in enumerate(busy) if end <= item.start_s + _ROUNDING_S)
        lane = next(free, len(busy))
        busy[lane : lane + 1] = [item.end_s]
        lanes[index] = lane
    return lanes


def write(plan: Plan, path: Path) -> None:
    """Writes the trace."""
    path.write_text(json.dumps({"traceEvents": events(plan)}), encoding="utf-8")
