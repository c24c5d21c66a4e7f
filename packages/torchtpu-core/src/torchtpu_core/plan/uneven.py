# SPDX-License-Identifier: Apache-2.0
"""Who sends how much to whom in the uneven all-to-alls of a step.

A rank knows what it sends and what it receives. Where other ranks are recorded too, theirs are
the other rows; a rank that stands for others speaks for their rows: position by position, or, as
where each sends to the next, by the distance between ranks. If what comes of neither is what the
rank receives, ranks differ in a way that was not recorded: the others' parts are then taken to
grow with what it sends to, and receives from, each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.ici.fabric import Floats
from torchtpu_core.ici.uneven import MOST_DEVICES
from torchtpu_core.plan.records import Op, Parts, Recording

#: An all-to-all: places of its ranks from the first one, and how many of them went before.
Key = tuple[tuple[int, ...], int]
#: What each rank of a group sends to each.
Rows = tuple[tuple[int, ...], ...]


def complete(recordings: Sequence[Recording]) -> None:
    """Sets the parts of the uneven all-to-alls of a step, and notes how uneven they are."""
    known = [dict(_exchanges(one)) for one in recordings]
    role_of = [0] * recordings[0].world_size
    for number, one in enumerate(recordings):
        for rank in one.ranks:
            role_of[rank] = number
    found = _Found()
    for number, one in enumerate(recordings):
        for key, op in known[number].items():
            op.parts = None
            if len(op.group) > MOST_DEVICES:
                _note(one, f"{_name(op)} has {len(op.group):,} ranks: it is priced as if even")
                continue
            mine = op.group.index(one.rank)
            others = [(known[role_of[rank]].get(key), role_of[rank]) for rank in op.group]
            senders = [
                (other.sent, other.group.index(recordings[role].rank))
                if other is not None
                else (op.sent, mine)
                for other, role in others
            ]
            rows = _rows(senders, op.received, mine)
            op.parts = found.parts(rows, mine, one, op)


@dataclass(slots=True)
class _Found:
    """Parts by their rows, so that equal ones are one object."""

    known: dict[object, Parts | None] = field(default_factory=dict)

    def parts(
        self,
        rows: Rows | None,
        mine: int,
        recording: Recording,
        op: Op,
    ) -> Parts | None:
        """The parts of all ranks of a group; None if they are even."""
        key = rows or (op.sent, op.received, mine)
        if key not in self.known:
            sizes = np.array(rows or (), dtype=np.float64)
            if rows is None:
                sizes = in_proportion(op.sent, op.received, mine)
            even = bool((sizes == sizes.flat[0]).all())
            self.known[key] = None if even else Parts(sizes)
        made = self.known[key]
        if made is not None:
            ratio = made.sizes.max() / max(made.sizes.mean(), 1e-9)
            how = (
                "from its split sizes"
                if rows is not None
                else (
                    "from what this rank sends and receives, the others' parts in proportion: "
                    "record more ranks with --ranks if they differ"
                )
            )
            _note(recording, f"{_name(op)}: the largest part is {ratio:.1f} times the mean; {how}")
        return made


def _rows(
    senders: Sequence[tuple[tuple[int, ...], int]], received: Sequence[int], mine: int
) -> Rows | None:
    """What each rank sends to each; None if it is not known.

    Args:
        senders: for each rank of the group, what the one that stands for it sends, and from where.
        received: what one rank gets from each.
        mine: its place in the group.
    """
    by_position = tuple(sent for sent, _ in senders)
    by_distance = tuple(
        tuple(sent[(own + to - place) % len(sent)] for to in range(len(sent)))
        for place, (sent, own) in enumerate(senders)
    )
    for rows in (by_position, by_distance):
        if all(row[mine] == part for row, part in zip(rows, received, strict=True)):
            return rows
    return None


def in_proportion(sent: Sequence[int], received: Sequence[int], mine: int) -> Floats:
    """The parts of all ranks from one's row and column: products of the two.

    >>> in_proportion([2, 4], [2, 6], 0).tolist()
    [[2.0, 4.0], [6.0, 12.0]]
    """
    row, column = np.array(sent, dtype=np.float64), np.array(received, dtype=np.float64)
    usual = sent[mine] or (row.mean() + column.mean()) / 2
    sizes = np.outer(column, row) / usual if usual else np.zeros((len(row),) * 2)
    sizes[mine], sizes[:, mine] = row, column
    result: Floats = sizes
    return result


def _exchanges(recording: Recording) -> Iterator[tuple[Key, Op]]:
    """The all-to-alls of a step whose parts are known."""
    start, end = recording.step()
    seen: Counter[tuple[int, ...]] = Counter()
    for op in recording.ops[start:end]:
        if op.sent and len(op.group) > 1:
            shape = tuple(rank - min(op.group) for rank in op.group)
            yield (shape, seen[shape]), op
            seen[shape] += 1


def _name(op: Op) -> str:
    return f"the uneven all-to-all at {op.line}"


def _note(recording: Recording, text: str) -> None:
    if text not in recording.notes:
        recording.notes.append(text)
