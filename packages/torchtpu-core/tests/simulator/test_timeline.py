# SPDX-License-Identifier: Apache-2.0
"""Queues on the simulated clock."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core.errors import TimelineError
from torchtpu_core.simulator import timeline as module
from torchtpu_core.simulator.timeline import (
    Join,
    Launch,
    Queue,
    Record,
    RecordMark,
    Timeline,
    Unit,
    WaitMark,
)

FIRST, SECOND, OTHER_DEVICE = Queue(0, 0), Queue(0, 1), Queue(1, 0)


def _run(timeline: Timeline, queue: Queue, duration_ps: int, **kwargs) -> Record:
    launch = Launch(name="work", queues=(queue,), duration_ps=duration_ps, **kwargs)
    return timeline.apply(launch)[0]


def test_timeline_doctests_pass() -> None:
    assert doctest.testmod(module).failed == 0


def test_launches_on_one_queue_run_in_order() -> None:
    timeline = Timeline()
    records = [_run(timeline, FIRST, duration) for duration in (5, 7, 1)]
    assert [(r.start_ps, r.end_ps) for r in records] == [(0, 5), (5, 12), (12, 13)]


def test_launches_of_two_streams_share_the_core_of_a_device() -> None:
    timeline = Timeline()
    _run(timeline, FIRST, 5)
    assert _run(timeline, SECOND, 5).start_ps == 5


def test_launches_of_two_streams_overlap_on_different_units() -> None:
    timeline = Timeline()
    _run(timeline, FIRST, 5)
    assert _run(timeline, SECOND, 5, unit=Unit.TRANSFER).start_ps == 0


def test_launches_on_two_devices_overlap() -> None:
    timeline = Timeline()
    _run(timeline, FIRST, 5)
    assert _run(timeline, OTHER_DEVICE, 5).start_ps == 0


def test_launch_on_several_devices_waits_for_the_slowest() -> None:
    timeline = Timeline()
    _run(timeline, FIRST, 3)
    _run(timeline, OTHER_DEVICE, 9)
    collective = Launch(name="psum", queues=(FIRST, OTHER_DEVICE), duration_ps=4, unit=Unit.ICI)
    records = timeline.apply(collective)
    assert [(r.queue, r.start_ps, r.end_ps) for r in records] == [
        (FIRST, 9, 13),
        (OTHER_DEVICE, 9, 13),
    ]


def test_launch_does_not_start_before_it_is_issued() -> None:
    assert _run(Timeline(), FIRST, 5, issued_ps=20).start_ps == 20


def test_wait_holds_back_later_work_only() -> None:
    timeline = Timeline()
    early = _run(timeline, OTHER_DEVICE, 2)
    _run(timeline, FIRST, 10)
    timeline.apply(RecordMark(FIRST, mark=1))
    _run(timeline, FIRST, 10)
    timeline.apply(WaitMark(OTHER_DEVICE, mark=1))
    assert early.end_ps == 2
    assert _run(timeline, OTHER_DEVICE, 1).start_ps == 10


def test_wait_for_a_mark_that_was_never_recorded_does_nothing() -> None:
    timeline = Timeline()
    timeline.apply(WaitMark(FIRST, mark=9))
    assert _run(timeline, FIRST, 1).start_ps == 0


def test_join_waits_for_all_work_of_the_other_queue() -> None:
    timeline = Timeline()
    _run(timeline, FIRST, 8)
    timeline.apply(Join(OTHER_DEVICE, FIRST))
    assert _run(timeline, OTHER_DEVICE, 1).start_ps == 8


def test_elapsed_between_marks_is_the_work_between_them() -> None:
    timeline = Timeline()
    timeline.apply(RecordMark(FIRST, mark=1))
    _run(timeline, FIRST, 6)
    _run(timeline, FIRST, 7)
    timeline.apply(RecordMark(FIRST, mark=2))
    assert timeline.elapsed_ps(1, 2) == 13
    assert timeline.elapsed_ps(2, 1) == -13


def test_mark_recorded_again_takes_the_later_time() -> None:
    timeline = Timeline()
    timeline.apply(RecordMark(FIRST, mark=1))
    _run(timeline, FIRST, 6)
    timeline.apply(RecordMark(FIRST, mark=1))
    assert timeline.mark_ps(1) == 6


def test_mark_that_is_forgotten_has_no_time() -> None:
    timeline = Timeline()
    timeline.apply(RecordMark(FIRST, mark=1))
    timeline.forget_mark(1)
    with pytest.raises(TimelineError, match="never recorded"):
        timeline.mark_ps(1)


@pytest.mark.parametrize(
    "launch",
    [
        Launch(name="bad", queues=(FIRST,), duration_ps=-1),
        Launch(name="bad", queues=(FIRST,), duration_ps=1, issued_ps=-1),
        Launch(name="bad", queues=(), duration_ps=1),
        Launch(name="bad", queues=(FIRST, SECOND), duration_ps=1),
    ],
)
def test_launch_without_a_place_raises_and_changes_nothing(launch) -> None:
    timeline = Timeline()
    with pytest.raises(TimelineError, match="'bad'"):
        timeline.apply(launch)
    assert timeline.device_end_ps(0) == 0


_LAUNCHES = st.builds(
    Launch,
    name=st.just("work"),
    queues=st.lists(
        st.builds(Queue, st.integers(0, 2), st.integers(0, 1)),
        min_size=1,
        max_size=3,
        unique_by=lambda queue: queue.device,
    ).map(tuple),
    duration_ps=st.integers(0, 20),
    unit=st.sampled_from(Unit),
)


@given(st.lists(_LAUNCHES, max_size=20))
def test_no_unit_and_no_queue_does_two_things_at_once(launches) -> None:
    timeline = Timeline()
    records = [record for launch in launches for record in timeline.apply(launch)]
    for key in (lambda r: (r.queue.device, r.unit), lambda r: r.queue):
        ends: dict = {}
        for record in records:
            assert record.start_ps >= ends.get(key(record), 0)
            ends[key(record)] = record.end_ps
    for device in range(3):
        latest = max((r.end_ps for r in records if r.queue.device == device), default=0)
        assert timeline.device_end_ps(device) == latest
