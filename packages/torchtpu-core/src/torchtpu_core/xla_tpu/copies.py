# SPDX-License-Identifier: Apache-2.0
"""Copies between HBM and VMEM that run beside the core, in what it leaves of HBM.

The rate of HBM is one for both: a copy goes on while the core computes, and stands still while the
core reads or writes HBM itself. Copies are served in the order in which they were started. Which
of the two is served first changes nothing in when both are done.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class Copy:
    """A copy's seconds of HBM that are left, and when it ran; NaN while that is not known."""

    name: str
    left_s: float
    start_s: float = float("nan")
    end_s: float = float("nan")


class Copies:
    """Copies that have been started and are not done.

    >>> copies = Copies()
    >>> weights = copies.start("weights", 3.0)
    >>> copies.advance(0.0, 4.0, hbm_s=2.0)  # the core wants HBM half of the time
    >>> copies.done("weights", 4.0), weights.start_s
    (5.0, 0.0)
    """

    def __init__(self) -> None:
        self._waiting: deque[Copy] = deque()
        self._ends: dict[str, float] = {}

    def start(self, name: str, seconds: float) -> Copy:
        """Puts a copy behind the others."""
        copy = Copy(name, seconds)
        self._waiting.append(copy)
        return copy

    def advance(self, start_s: float, end_s: float, hbm_s: float) -> None:
        """Goes on for a while, of which others have HBM for `hbm_s`."""
        if end_s <= start_s:
            return
        share = max(0.0, 1 - hbm_s / (end_s - start_s))
        now = start_s
        while self._waiting and share:
            copy = self._served(now)
            if copy.left_s > share * (end_s - now):
                copy.left_s -= share * (end_s - now)
                return
            now += copy.left_s / share
            self._end(now)

    def done(self, name: str, now: float) -> float:
        """When a copy is done for whose end the core waits from `now`; `now` if it is no copy."""
        while any(copy.name == name for copy in self._waiting):
            now = self._finish(now)
        return self._ends.get(name, now)

    def drain(self, now: float) -> float:
        """When all are done if nothing else wants HBM."""
        while self._waiting:
            now = self._finish(now)
        return now

    def _served(self, now: float) -> Copy:
        """The first in the row, which runs from `now` on if it did not before."""
        copy = self._waiting[0]
        if math.isnan(copy.start_s):
            copy.start_s = now
        return copy

    def _finish(self, now: float) -> float:
        end = now + self._served(now).left_s
        self._end(end)
        return end

    def _end(self, now: float) -> None:
        copy = self._waiting.popleft()
        copy.end_s = self._ends[copy.name] = now
