# SPDX-License-Identifier: Apache-2.0
"""Which values of a step stay in VMEM from their first use to their last.

XLA keeps what is used again soon in VMEM while there is room, and brings operands there ahead of
their use. XLA tries values one after the other, in the order of what they would save in HBM: room
goes to those first that most operators make or read, so that scores which the softmax's gradient
reads once more stay there rather than the products beside them, and of these to those made first.
A loop counts as five steps; what is an operand or a result of the step comes last. A value of which
each wait found room is never in HBM; another takes the room that some of its waits have found all
the same. None waits longer than it takes to copy all of VMEM a few times (`LONGEST`), as room is
wanted for others. Not modelled: copies in parts, and what products hide.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

#: The longest wait, in copies of the whole VMEM from HBM: libtpu's limit, by its estimate of time.
LONGEST = 8
#: Steps of any loop, to XLA.
_STEPS = 5


@dataclass(frozen=True, slots=True)
class Vmem:
    """Room in VMEM for values between operators.

    Attributes:
        room_bytes: the room.
        starts_s: when each operator of the step starts; empty if that is not known.
        longest_s: the longest that a value waits there for its next use.
    """

    room_bytes: int = 0
    starts_s: Sequence[float] = ()
    longest_s: float = 0.0

    def keeps(self, first: int, then: int) -> bool:
        """Whether a value can wait from one operator to another."""
        if not self.starts_s:
            return True
        last = len(self.starts_s) - 1
        return self.starts_s[min(then, last)] - self.starts_s[min(first, last)] <= self.longest_s


NO_VMEM = Vmem()


@dataclass(frozen=True, slots=True)
class Life:
    """A value while it is needed.

    Attributes:
        storage: its storage.
        size_bytes: with padding.
        uses: operators that make or read it, in order.
        end: the operator before which its place is free.
    """

    storage: int
    size_bytes: int
    uses: tuple[int, ...]
    end: int

    @property
    def first(self) -> int:
        """The operator that makes it."""
        return self.uses[0]

    def waits(self) -> list[tuple[int, int, int]]:
        """How long it waits from one use to the next, and the stretch; the last ends with it."""
        last = max(self.end, self.first + 1)
        if len(self.uses) == 1:
            return [(0, self.first, last)]
        return [
            (other - one, one, last if other == self.uses[-1] else other)
            for one, other in zip(self.uses, self.uses[1:], strict=False)
        ]


def in_hbm(
    lives: Sequence[Life], passing: Sequence[Life], vmem: Vmem, loops: Container[int] = ()
) -> list[Life]:
    """The values that take a place in HBM.

    Args:
        lives: values of the step.
        passing: operands and results of the step at each use, which are in VMEM then.
        vmem: its room.
        loops: operators that are loops, whose steps use what they make or read.
    """
    if not vmem.room_bytes:
        return list(lives)
    count = max((life.end for life in (*lives, *passing)), default=0) + 2
    taken = np.zeros(count, np.int64)
    out = set()
    for group in (lives, passing):
        order = [(-_count(life, loops), life.first, number) for number, life in enumerate(group)]
        for *_, number in sorted(order):
            life = group[number]
            found = [_finds_room(*wait, life.size_bytes, taken, vmem) for wait in life.waits()]
            if group is lives and not all(found):
                out.add(number)
    return [life for number, life in enumerate(lives) if number in out]


def _count(life: Life, loops: Container[int]) -> int:
    """Operators that use a value, the steps of loops as XLA counts them."""
    return sum(_STEPS if index in loops else 1 for index in life.uses)


def _finds_room(gap: int, start: int, end: int, size: int, taken: np.ndarray, vmem: Vmem) -> bool:
    """Whether a wait has room among those that found some before, which it takes then."""
    stretch = taken[start:end]
    if size + stretch.max() > vmem.room_bytes or not vmem.keeps(start, start + gap):
        return False
    stretch += size
    return True
