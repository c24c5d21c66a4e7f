# SPDX-License-Identifier: Apache-2.0
"""Queues of devices on a simulated clock: events in, records out.

A queue is a stream of a device; what is launched on it runs in order. The units of a
device (its core, its ICI, its transfers) do one thing at a time, in the order in which
it was launched, and work at the same time as each other. A launch on several queues
starts when all of them can, as a collective does. Time is in integer picoseconds from
zero, and only launches make it pass: the host is taken to be infinitely fast unless a
launch says when it was issued. No wall clock, no threads, no global state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torchtpu_core.errors import TimelineError


class Unit(enum.Enum):
    """A part of a device that works by itself."""

    CORE = "core"
    ICI = "ici"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """A stream of a device."""

    device: int
    stream: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Work enters queues.

    Attributes:
        name: what the record is called.
        queues: one queue of each device that takes part.
        duration_ps: how long it runs, the same on each.
        unit: the unit it needs.
        issued_ps: when the host issued it; it cannot start earlier.
    """

    name: str
    queues: tuple[Queue, ...]
    duration_ps: int
    unit: Unit = Unit.CORE
    issued_ps: int = 0


@dataclass(frozen=True, slots=True)
class RecordMark:
    """A mark takes the time at which all earlier work of a queue has ended."""

    queue: Queue
    mark: int


@dataclass(frozen=True, slots=True)
class WaitMark:
    """Later work of a queue waits for a mark; one that was never recorded has passed."""

    queue: Queue
    mark: int


@dataclass(frozen=True, slots=True)
class Join:
    """Later work of `queue` waits for all earlier work of `other`."""

    queue: Queue
    other: Queue


Event = Launch | RecordMark | WaitMark | Join


@dataclass(frozen=True, slots=True)
class Record:
    """When one device did a piece of work, in picoseconds."""

    name: str
    queue: Queue
    unit: Unit
    start_ps: int
    end_ps: int


class Timeline:
    """The state of all queues. Memory grows with queues and marks, not with work."""

    def __init__(self) -> None:
        self._queue_free_ps: dict[Queue, int] = {}
        self._unit_free_ps: dict[tuple[int, Unit], int] = {}
        self._marks_ps: dict[int, int] = {}

    def apply(self, event: Event) -> tuple[Record, ...]:
        """Takes one event; returns the records of the work it placed, if any.

        Raises:
            TimelineError: a negative time, no queue, or two queues of one device.

        >>> timeline = Timeline()
        >>> launch = Launch(name="add", queues=(Queue(0),), duration_ps=5)
        >>> [timeline.apply(launch)[0].end_ps for _ in range(2)]
        [5, 10]
        """
        match event:
            case Launch():
                return self._launch(event)
            case RecordMark(queue, mark):
                self._marks_ps[mark] = self.queue_end_ps(queue)
            case WaitMark(queue, mark):
                self._hold(queue, self._marks_ps.get(mark, 0))
            case Join(queue, other):
                self._hold(queue, self.queue_end_ps(other))
        return ()

    def queue_end_ps(self, queue: Queue) -> int:
        """When all work launched on a queue so far has ended."""
        return self._queue_free_ps.get(queue, 0)

    def device_end_ps(self, device: int) -> int:
        """When all work launched on a device so far has ended."""
        ends = (end for queue, end in self._queue_free_ps.items() if queue.device == device)
        return max(ends, default=0)

    def mark_ps(self, mark: int) -> int:
        """The time a mark took.

        Raises:
            TimelineError: it was never recorded.
        """
        if mark not in self._marks_ps:
            raise TimelineError(
                f"Event {mark} has no time: it was never recorded. Call event.record() first."
            )
        return self._marks_ps[mark]

    def elapsed_ps(self, start: int, end: int) -> int:
        """Simulated time between two marks, negative if `end` came first."""
        return self.mark_ps(end) - self.mark_ps(start)

    def forget_mark(self, mark: int) -> None:
        """Drops a mark whose event is gone."""
        self._marks_ps.pop(mark, None)

    def _hold(self, queue: Queue, until_ps: int) -> None:
        self._queue_free_ps[queue] = max(self.queue_end_ps(queue), until_ps)

    def _launch(self, launch: Launch) -> tuple[Record, ...]:
        _check(launch)
        start_ps = launch.issued_ps
        for queue in launch.queues:
            unit_free_ps = self._unit_free_ps.get((queue.device, launch.unit), 0)
            start_ps = max(start_ps, self.queue_end_ps(queue), unit_free_ps)
        end_ps = start_ps + launch.duration_ps
        for queue in launch.queues:
            self._queue_free_ps[queue] = end_ps
            self._unit_free_ps[queue.device, launch.unit] = end_ps
        return tuple(
            Record(launch.name, queue, launch.unit, start_ps, end_ps) for queue in launch.queues
        )


def _check(launch: Launch) -> None:
    """Refuses a launch that has no place on a timeline."""
    if launch.duration_ps < 0 or launch.issued_ps < 0:
        raise TimelineError(
            f"{launch.name!r} has a negative time: duration {launch.duration_ps} ps, issued at "
            f"{launch.issued_ps} ps. Times on a timeline start at zero."
        )
    devices = [queue.device for queue in launch.queues]
    if not devices or len(set(devices)) != len(devices):
        raise TimelineError(
            f"{launch.name!r} needs one queue of each device that takes part, not those of "
            f"devices {devices}."
        )
