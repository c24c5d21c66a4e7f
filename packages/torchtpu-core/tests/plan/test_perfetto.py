# SPDX-License-Identifier: Apache-2.0
"""The trace of a plan: every operator on a track on which nothing else runs meanwhile."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.perfetto import events
from torchtpu_core.plan.placed import Placed, Unit
from torchtpu_core.plan.records import Recording, Work
from torchtpu_core.testing.recordings import op

SPANS = [(0, 4), (1, 2), (1, 3), (2, 5), (4, 6)]


def _events(*units: Unit) -> list[dict]:
    made = make_plan(Recording(world_size=128, rank=3), parse_slice("v5p:4x4x4"), 2, "highest")
    made.schedule.placed = [
        Placed(op("mul", Work.ELEMENTWISE), i, unit, start * 1e-3, end * 1e-3, "HBM", 0.0, 0.0)
        for unit in units
        for i, (start, end) in enumerate(SPANS)
    ]
    return events(made)


def test_slices_of_one_track_do_not_overlap() -> None:
    found = _events(Unit.CORE, Unit.ICI)
    slices = [event for event in found if event["ph"] == "X"]
    tracks = defaultdict(list)
    for one in slices:
        tracks[one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert len(slices) == 2 * len(SPANS)
    # At most three run at once, on each of two units.
    assert len(tracks) == 2 * 3
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))


def test_tracks_are_named_by_unit_rank_and_slices() -> None:
    names = [event["args"]["name"] for event in _events(Unit.ICI) if event["ph"] == "M"]
    assert names[0] == "v5p:4x4x4 x 2 slices, rank 3 (simulated)"
    assert names[1:3] == ["TensorCore (simulated)", "ICI (simulated)"]
    assert names[3:] == ["ICI, beside 1 (simulated)", "ICI, beside 2 (simulated)"]
