# SPDX-License-Identifier: Apache-2.0
"""Values that lie in the places of the step's results until these are written.

Results have places of their own throughout, as logits that are kept and gradients have. XLA's
TPU compiler gives such a place to other values before the result is written, that of a changed
weight while its new value waits to be moved there (`plan.weight_updates`), and that of a gradient
which is made late (`plan.late_gradients`) until the end. Large values come first, each into the
smallest place that it fits; only the others are placed among themselves (`plan.heap`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu_core.plan.records import Block
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life


@dataclass(frozen=True, slots=True)
class FreePlace:
    """A result's place while nothing is there.

    Attributes:
        size_bytes: its size.
        start: the operator from which it is free.
        end: the operator that writes the result.
    """

    size_bytes: int
    start: int
    end: int

    def holds(self, life: Life, taken: Sequence[tuple[int, int]]) -> bool:
        """Whether it has room for a value beside others, which are sorted."""
        if life.first < self.start or life.end > self.end:
            return False
        at = bisect_left(taken, (life.first, life.end))
        after_before = not at or taken[at - 1][1] <= life.first
        return after_before and (at == len(taken) or taken[at][0] >= life.end)


def free_places(
    uses: Uses,
    blocks: Mapping[int, Block],
    start: int,
    fixed: Mapping[int, int],
    waiting: Mapping[int, tuple[int, int]],
) -> list[FreePlace]:
    """The places of a step's results while these are not written.

    Args:
        uses: of its storages.
        blocks: storages by identifier.
        start: operators recorded before the step.
        fixed: bytes of its operands and results, by storage.
        waiting: from which operator to which the place of a changed weight is free, or that of a
            gradient which is made late.
    """
    found = [FreePlace(fixed[s], *window) for s, window in waiting.items() if s in fixed]
    for storage, size in fixed.items():
        writers = uses.writers.get(storage, ())
        if writers and blocks[storage].born >= start and storage not in waiting:
            found.append(FreePlace(size, 0, writers[0]))
    return found


def in_own_places(lives: Sequence[Life], places: Sequence[FreePlace]) -> list[Life]:
    """The values that need places of their own.

    Args:
        lives: values that take HBM for a part of the step.
        places: of results, which hold the others.

    >>> early, late = Life(1, 8, (0,), 2), Life(2, 8, (1,), 4)
    >>> in_own_places([early, late], [FreePlace(9, 0, 3)]) == [late]
    True
    """
    ordered = sorted(places, key=lambda place: place.size_bytes)
    sizes = [place.size_bytes for place in ordered]
    taken: list[list[tuple[int, int]]] = [[] for _ in ordered]
    own = []
    for life in sorted(lives, key=lambda one: -one.size_bytes):
        fitting = range(bisect_left(sizes, max(life.size_bytes, 1)), len(ordered))
        at = next((i for i in fitting if ordered[i].holds(life, taken[i])), None)
        if at is None:
            own.append(life)
        else:
            insort(taken[at], (life.first, life.end))
    return own
