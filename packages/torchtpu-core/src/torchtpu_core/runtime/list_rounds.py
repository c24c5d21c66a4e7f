# SPDX-License-Identifier: Apache-2.0
"""How a list of tensors is divided into parts that are alike.

Legend: tensors are of one *kind* if one program serves them; a *round* is how many of each kind a
part takes. A round is called as often as the list has it, so that few kernels are compiled: one
round for each layer of a network, and one for what comes before and after the layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeAlias

#: Of one part: kinds of tensors, and how many of each.
Round: TypeAlias = tuple[tuple[Hashable, int], ...]

#: Tensors of a kind in one part: each is a kernel to compile.
_MOST_OF_A_KIND = 8
#: A kernel more is worth so many calls less.
_CALLS_FOR_A_KERNEL = 8
_MOST_ROUNDS = 64  # remembered of an op; then all are forgotten


def rounds_of(alike: Mapping[Hashable, list[int]], had: dict[Round, None]) -> list[list[int]]:
    """The places that each part takes.

    A list is divided as those before it, so that a network with equal layers has a program for one
    layer, however many a step leaves out; if that makes too many parts, by itself.

    Args:
        alike: the places of each kind of tensor.
        had: the rounds of the op's lists so far, to which new ones are added.
    """
    if len(had) > _MOST_ROUNDS:
        had.clear()
    count = sum(map(len, alike.values()))
    for known in (sorted(had, key=_size, reverse=True), []):
        left = {kind: places[::-1] for kind, places in alike.items()}
        rounds, new = [], []
        for each in known:
            while all(len(left.get(kind, ())) >= many for kind, many in each):
                rounds.append(_take(left, each))
        counts = {kind: len(places) for kind, places in left.items() if places}
        for each, times in _new_rounds(counts):
            new.append(each)
            rounds.extend(_take(left, each) for _ in range(times))
        if 2 * len(rounds) <= count:
            break
    had.update(dict.fromkeys(new))
    return rounds


def _new_rounds(counts: Mapping[Hashable, int]) -> Iterator[tuple[Round, int]]:
    """Rounds that take all tensors, and how often each is made."""
    while sum(counts.values()) > _MOST_OF_A_KIND and max(counts.values()) > 1:
        choices = [_made_often(counts, n) for n in sorted({n for n in counts.values() if n > 1})]
        each, times = min(choices, key=lambda choice: _cost(counts, *choice))
        yield each, times
        taken = dict(each)
        rest = {kind: n - times * taken.get(kind, 0) for kind, n in counts.items()}
        counts = {kind: n for kind, n in rest.items() if n}
    if counts:
        yield tuple(counts.items()), 1


def _made_often(counts: Mapping[Hashable, int], times: int) -> tuple[Round, int]:
    each = [(kind, min(n // times, _MOST_OF_A_KIND)) for kind, n in counts.items() if n >= times]
    if len(each) == 1:  # nothing comes with it
        many = min(_MOST_OF_A_KIND, 1 << times.bit_length() - 1)
        return ((each[0][0], many),), times // many
    return tuple(each), times


def _cost(counts: Mapping[Hashable, int], each: Round, times: int) -> int:
    """Kernels to compile, among them one for each tensor that is left, and some of the calls."""
    left = sum(counts.values()) - times * _size(each)
    return _CALLS_FOR_A_KERNEL * (_size(each) + left) + times


def _take(left: Mapping[Hashable, list[int]], each: Round) -> list[int]:
    return [left[kind].pop() for kind, many in each for _ in range(many)]


def _size(each: Round) -> int:
    return sum(many for _, many in each)
