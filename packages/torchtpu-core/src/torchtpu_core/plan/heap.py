# SPDX-License-Identifier: Apache-2.0
"""How much room values take that are placed in memory in the order of the program.

XLA's TPU compiler gives each value of a scheduled program the smallest hole that it fits in, or
else more memory, and moves none later. Large gradients that come after small activations find
no hole that is large enough: more is taken than is ever needed at once.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence

from torchtpu_core.plan.vmem import Life


class _Heap:
    """Memory from 0 upwards, with holes; offsets and sizes in bytes."""

    def __init__(self) -> None:
        self.top = 0
        self._holes: list[tuple[int, int]] = []  # start and end, by start, none beside another

    def place(self, size: int) -> int:
        """Where a value of a size goes."""
        fitting = (hole for hole in self._holes if hole[1] - hole[0] >= size)
        hole = min(fitting, key=lambda one: one[1] - one[0], default=None)
        if hole is None:
            return self._extend(size)
        start, end = hole
        self._holes.remove(hole)
        if start + size < end:
            insort(self._holes, (start + size, end))
        return start

    def _extend(self, size: int) -> int:
        start = self.top
        if self._holes and self._holes[-1][1] == self.top:
            start = self._holes.pop()[0]
        self.top = start + size
        return start

    def free(self, start: int, size: int) -> None:
        """Makes a hole, joined with those beside it."""
        end = start + size
        for hole in [one for one in self._holes if one[1] == start or one[0] == end]:
            self._holes.remove(hole)
            start, end = min(start, hole[0]), max(end, hole[1])
        insort(self._holes, (start, end))


def heap_bytes(lives: Sequence[Life]) -> int:
    """Bytes from the first to the last place that values take.

    >>> small, large = Life(0, 10, (0,), 2), Life(1, 15, (2,), 4)
    >>> heap_bytes([small, Life(2, 1, (1,), 4), large])
    26
    """
    heap = _Heap()
    ends: list[tuple[int, int, int]] = []
    for life in sorted(lives, key=lambda one: (one.first, -one.size_bytes)):
        while ends and ends[0][0] <= life.first:
            _, start, size = heapq.heappop(ends)
            heap.free(start, size)
        if life.size_bytes:
            heapq.heappush(ends, (life.end, heap.place(life.size_bytes), life.size_bytes))
    return heap.top
