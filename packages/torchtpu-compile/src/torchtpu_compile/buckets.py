# SPDX-License-Identifier: Apache-2.0
"""Which padded sizes a graph with open sizes is compiled for.

Sizes first share coarse buckets, so that a sweep over many sizes compiles few programs. A
combination of sizes that keeps coming back has earned a program of its own within 12.5 %
of its size, as long as the graph stays within its budget of programs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: Buckets of small sizes; above the last, powers of two.
_SMALL = (16, 64)
#: The bucket of all numbers below zero, such as the step of a range that counts down: no size is
#: bounded by what one of them is padded to.
BELOW_ZERO = -1
#: A size this often seen gets a finer bucket.
_USES_BEFORE_FINE = 8
#: Combinations of sizes that are remembered; then all are forgotten.
_MOST_SIZES = 4096


@dataclass(slots=True, kw_only=True)
class BucketPolicy:
    """The buckets of one graph.

    Attributes:
        limit: how many programs one graph may have before sizes stop getting finer ones.
        multiple: round sizes up to a multiple of this instead; None: the policy above.
        counts: how often each combination of sizes was seen.
        chosen: the padded sizes of each.
        programs: all padded sizes so far.
    """

    limit: int = 8
    multiple: int | None = None
    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    chosen: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    programs: set[tuple[int, ...]] = field(default_factory=set)

    def padded(self, true: tuple[int, ...], upper: tuple[int | None, ...]) -> tuple[int, ...]:
        """The padded sizes for true ones.

        Args:
            true: size of each symbol.
            upper: declared largest size of each symbol, None if it has none.
        """
        if len(self.counts) > _MOST_SIZES:
            self.counts.clear()
            self.chosen.clear()
        self.counts[true] += 1
        if self.multiple is not None:
            found = tuple(
                BELOW_ZERO if n < 0 else -(-n // self.multiple) * self.multiple for n in true
            )
        elif not self.is_frequent(true) and true in self.chosen:
            return self.chosen[true]
        else:
            found = self._by_policy(true)
        capped = tuple(
            n if most is None else max(min(n, most), t)
            for n, most, t in zip(found, upper, true, strict=True)
        )
        self.chosen[true] = capped
        self.programs.add(capped)
        return capped

    def is_frequent(self, true: tuple[int, ...]) -> bool:
        """Whether sizes come so often that they are worth a program with less padding."""
        return self.counts[true] >= _USES_BEFORE_FINE

    def _by_policy(self, true: tuple[int, ...]) -> tuple[int, ...]:
        rough = tuple(coarse(n) for n in true)
        if not self.is_frequent(true) or len(self.programs) >= self.limit:
            return self.chosen.get(true, rough)
        return tuple(fine(n) for n in true)


def coarse(size: int) -> int:
    """The coarse bucket of a size."""
    if size < 0:
        return BELOW_ZERO
    for bucket in _SMALL:
        if size <= bucket:
            return bucket
    return 1 << (size - 1).bit_length()


def fine(size: int) -> int:
    """The smallest bucket that holds a size: eight to a power of two, at most 12.5 % larger."""
    if size < 0:
        return BELOW_ZERO
    step = max(1 << max((size - 1).bit_length() - 4, 0), 1)
    return -(-size // step) * step
