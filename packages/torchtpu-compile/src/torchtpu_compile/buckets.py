# SPDX-License-Identifier: Apache-2.0
"""Which padded sizes a graph with open sizes is compiled for.

Sizes first share coarse buckets, so that a sweep over many sizes compiles few programs. A
combination of sizes that keeps coming back has earned a program of its own within 12.5 %
of its size, as long as the graph stays within its budget of programs. The paddings of several
sizes multiply, so what a large value may grow by is limited as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

#: Buckets of small sizes; above the last, powers of two.
_SMALL = (16, 64)
#: The bucket of all numbers below zero, such as the step of a range that counts down: no size is
#: bounded by what one of them is padded to.
BELOW_ZERO = -1
#: A size this often seen gets a finer bucket.
_USES_BEFORE_FINE = 8
#: Up to this many bytes, the largest value of a graph may be padded as its sizes' buckets say.
_FREE_BYTES = 1 << 29
#: Above it, how many times its true bytes: what two sizes between powers of two may come to.
_MOST_PADDING = 4.0
#: The same of sizes that come often.
_MOST_FINE_PADDING = 1.125
#: Finer and finer buckets: the logarithms of how many there are to a power of two.
_FINENESS = (0, 3, 4, 5, 6, 7)
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
        bytes_at: bytes of the graph's largest value at given sizes; None: paddings are not
            limited as a whole.
    """

    limit: int = 8
    multiple: int | None = None
    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    chosen: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    programs: set[tuple[int, ...]] = field(default_factory=set)
    bytes_at: Callable[[tuple[int, ...]], int] | None = None
    _limited: dict[tuple[tuple[int, ...], tuple[int, ...], bool], tuple[int, ...]] = field(
        default_factory=dict
    )

    def padded(self, true: tuple[int, ...], upper: tuple[int | None, ...]) -> tuple[int, ...]:
        """The padded sizes for true ones.

        Args:
            true: size of each symbol.
            upper: declared largest size of each symbol, None if it has none.
        """
        if len(self.counts) > _MOST_SIZES:
            self.counts.clear()
            self.chosen.clear()
            self._limited.clear()
        self.counts[true] += 1
        if self.multiple is not None:
            found = tuple(
                BELOW_ZERO if n < 0 else -(-n // self.multiple) * self.multiple for n in true
            )
        elif not self.is_frequent(true) and true in self.chosen:
            return self.chosen[true]
        else:
            found = self._by_policy(true)
        capped = _capped(true, found, upper)
        if self.multiple is None and self.bytes_at is not None:
            key = (true, capped, self.is_frequent(true))
            if key not in self._limited:
                self._limited[key] = self._with_less_padding(true, capped, self.bytes_at)
            capped = self._limited[key]
        self.chosen[true] = capped
        self.programs.add(capped)
        return capped

    def _with_less_padding(
        self,
        true: tuple[int, ...],
        padded: tuple[int, ...],
        bytes_at: Callable[[tuple[int, ...]], int],
    ) -> tuple[int, ...]:
        """Padded sizes at which the largest value is within its limit, as far as buckets go."""
        bytes_now = bytes_at(padded)
        if bytes_now <= _FREE_BYTES:
            return padded
        most = _MOST_FINE_PADDING if self.is_frequent(true) else _MOST_PADDING
        limit = max(most * bytes_at(true), _FREE_BYTES)
        while bytes_now > limit:
            others = [_with_finer(true, padded, i) for i in range(len(true))]
            least, other = min((bytes_at(other), other) for other in others)
            if least >= bytes_now:
                break
            bytes_now, padded = least, other
        return padded

    def is_frequent(self, true: tuple[int, ...]) -> bool:
        """Whether sizes come so often that they are worth a program with less padding."""
        return self.counts[true] >= _USES_BEFORE_FINE

    def _by_policy(self, true: tuple[int, ...]) -> tuple[int, ...]:
        rough = tuple(coarse(n) for n in true)
        if not self.is_frequent(true) or len(self.programs) >= self.limit:
            return self.chosen.get(true, rough)
        return tuple(fine(n) for n in true)


def _capped(
    true: tuple[int, ...], padded: tuple[int, ...], upper: tuple[int | None, ...]
) -> tuple[int, ...]:
    return tuple(
        n if most is None else max(min(n, most), t)
        for n, most, t in zip(padded, upper, true, strict=True)
    )


def _with_finer(true: tuple[int, ...], padded: tuple[int, ...], index: int) -> tuple[int, ...]:
    """Padded sizes with the next finer bucket for one of them, if there is one."""
    finer = (_rounded(true[index], fineness) for fineness in _FINENESS)
    size = next((n for n in finer if n < padded[index]), padded[index])
    return (*padded[:index], size, *padded[index + 1 :])


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
    return _rounded(size, 3)


def _rounded(size: int, fineness: int) -> int:
    """A size rounded up, with ``2**fineness`` buckets to a power of two."""
    if size < 1:
        return size
    step = 1 << max((size - 1).bit_length() - 1 - fineness, 0)
    return -(-size // step) * step
