# SPDX-License-Identifier: Apache-2.0
"""Groups: ops in a row whose sizes vary together, which run as one program at padded sizes.

A stream whose sizes vary runs op by op, but for pieces that repeat. Many of the other ops depend on
one number: how many rows an expert got, how long a sentence is. Their sizes are noted a few times
(`csrc/groups.h`); those that vary do so by a multiple of the same amounts, which is a *freedom*.
Ops in a row with one freedom between them are a group.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torchtpu_core import plugins
from torchtpu_core.runtime import varying
from torchtpu_core.runtime.programs import Program
from torchtpu_core.runtime.trace_lowering import Description

#: Sizes of each of several ops.
Row: TypeAlias = tuple[varying.Sizes, ...]
#: First op and number of ops.
Span: TypeAlias = tuple[int, int]
#: By how much a size changed from the first time on, in units of its own.
Freedom: TypeAlias = tuple[int, ...]

_TIMES = 3  # different sizes that tell which of them vary together
_LEAST_OPS = 3  # of a group; a program of fewer saves little
_MOST_OPS = 64
_MOST_WITNESSES = 8
_MOST_ROWS = 4096  # remembered; then all are forgotten
_lock = threading.Lock()
_rows: dict[tuple[int, int], list[Row]] = {}
#: Of each group the sizes by which it was found, by the sites of its first and its last op.
_witnesses: dict[tuple[int, int], Sequence[Row]] = {}


class NotReadyError(RuntimeError):
    """The program of a group is being compiled; until then its ops run one by one."""


def groups_in(description: Description) -> list[Span]:
    """Note the sizes of ops in a row; the groups among them.

    Args:
        description: of a trace of these ops.
    """
    nodes = description["nodes"]
    with _lock:
        if max(len(_rows), len(_witnesses)) > _MOST_ROWS:
            _rows.clear()
            _witnesses.clear()
        rows = _rows.setdefault(_place(nodes), [])
        row = tuple(varying.sizes_of(node) for node in nodes)
        if row not in rows:
            rows.append(row)
        return _found(nodes, rows) if len(rows) >= _TIMES else []


def build_group(description: Description, later: bool) -> Program | list[Span] | bool | None:
    """The program of a group at padded sizes.

    Args:
        description: of a trace of these ops.
        later: compile on the compiling thread; else before this returns.

    Returns:
        None: there is none at these sizes. False: not yet. A list: they are no group; these are.
    """
    nodes = description["nodes"]
    row = tuple(varying.sizes_of(node) for node in nodes)
    with _lock:
        rows = _witnesses.get(_place(nodes))
        if rows is None:
            return []
        rows = [*rows, row]
        free = [_freedoms(each) for each in zip(*rows, strict=True)]
        if any(of_op is None for of_op in free):
            return None
        if len(set[Freedom]().union(*(of_op for of_op in free if of_op))) > 1:
            return _found(nodes, rows)
    try:
        found: Program | None = plugins.manager().hook.torchtpu_open_sizes(
            description=description, sizes_seen=rows, later=later
        )
    except NotReadyError:
        return False
    if found is not None:
        varying.note_ops(description)
        return found
    with _lock:  # one of the ops has no form for open sizes
        middle = len(nodes) // 2
        halves = [(0, middle), (middle, len(nodes) - middle)]
        return [_kept(nodes, rows, span) for span in halves if span[1] >= _LEAST_OPS]


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions in the order of memory, those of size 1 last.

    None: the elements do not lie in a row, each once.
    """
    order = sorted(range(len(sizes)), key=lambda d: (sizes[d] == 1, -strides[d], d))
    expected = 1
    for d in reversed(order):
        if sizes[d] == 1:
            continue
        if strides[d] != expected:
            return None
        expected *= sizes[d]
    return tuple(order)


def freedom(history: Sequence[int]) -> Freedom | None:
    """How a size varies, the same for sizes that vary together; None: it does not.

    Args:
        history: its values.
    """
    changes = [n - history[0] for n in history]
    unit = math.gcd(*changes)
    return tuple(n // unit for n in changes) if unit else None


def _place(nodes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    return nodes[0]["site"], nodes[-1]["site"]


def _found(nodes: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Span]:
    """The groups, as long as can be."""
    free = [_freedoms(each) for each in zip(*rows, strict=True)]
    spans: list[Span] = []
    first = 0
    while first < len(nodes):
        end, joint = first, set[Freedom]()
        while end < min(len(nodes), first + _MOST_OPS) and _joins(nodes[end], first):
            of_op = free[end]
            if of_op is None or len(joint | of_op) > 1 or not (of_op or joint):
                break
            joint |= of_op
            end += 1
        last = max((i for i in range(first, end) if free[i]), default=first)
        if last + 1 - first >= _LEAST_OPS:
            spans.append((first, last + 1 - first))
        first = max(end, first + 1)
    return [_kept(nodes, rows, span) for span in spans]


def _kept(nodes: Sequence[Mapping[str, Any]], rows: Sequence[Row], span: Span) -> Span:
    """Remember by which sizes a group was found."""
    part = slice(span[0], span[0] + span[1])
    _witnesses[_place(nodes[part])] = [each[part] for each in rows[-_MOST_WITNESSES:]]
    return span


def _freedoms(sizes: Sequence[varying.Sizes]) -> set[Freedom] | None:
    """Those of an op; None: it has sizes of its own at some times.

    Sizes of 0 and 1 are never open: they broadcast.
    """
    if len({tuple(len(part) for pair in each for part in pair) for each in sizes}) > 1:
        return None
    flat = [[n for pair in each for part in pair for n in part] for each in sizes]
    histories = [history for history in zip(*flat, strict=True) if len(set(history)) > 1]
    if any(min(history) < 2 for history in histories):
        return None
    return {found for history in histories if (found := freedom(history)) is not None}


def _joins(node: Mapping[str, Any], first: int) -> bool:
    """Whether an op reads results of the group, which begins at `first`, as they lie in memory."""
    for place, base, view, _ in node["inputs"]:
        if place is None or place[0] != "node" or place[1] < first:
            continue
        if view is None or None in (dense_order(*base[:2]), dense_order(*view[:2])):
            return False
        if math.prod(base[0]) != math.prod(view[0]) or base[2] != view[2]:
            return False
    return True


def forget() -> None:
    """Forget all groups."""
    with _lock:
        _rows.clear()
        _witnesses.clear()
