# SPDX-License-Identifier: Apache-2.0
"""Which calls of a script vary in size from one time to the next.

A *site* is a place in a stream of ops (`csrc/journal.h`): the same calls lead up to it
whenever the script comes by. A layer after the other is another site; the next token of a
loop that decodes is the same site with larger operands. A loop that never stops for the
host is one endless stream without sites that come again. There the last calls tell the
place, as they also do where an optimizer goes from parameter to parameter; so only sizes
that grow steadily count. Sites of one line of the script share what they learn about sizes that
change. A compiled graph is a place wherever the script calls it.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from torchtpu_core.lowering.table import operator
from torchtpu_core.runtime import tables
from torchtpu_core.runtime.trace_lowering import Description

#: Of each operand of an op: sizes of the tensor, and those under which its storage is kept; then
#: those of what an op of no operands fills, and the numbers of an op that has such.
Sizes: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

#: Sizes of one site that get programs of their own: training and the last batch of an epoch.
_OWN_PROGRAMS = 2
_MOST_SITES = 8192  # remembered: an endless stream has a new one with each call
_MOST_SIZES = 16  # remembered of a site
_MANY_SIZES = 8  # of a site: others of its line will not stay at one size either
#: PyTorch has no symbols for how many numbers `linspace` makes, and how large a triangle is.
_SIZE_ARGUMENT = re.compile(
    r"\b(?:SymInt(?:\[\d*\])?\??\s+(?=\w)|int (?=(?:steps|row|col)\b))(\w+)"
)
_Key = TypeVar("_Key")
_Seen = TypeVar("_Seen")
_lock = threading.Lock()
_sites: dict[tuple[object, ...], list[Sizes]] = {}
#: Of each line and op, the sizes of sites that had many, by those that do not vary.
_varied: dict[tuple[object, ...], dict[tuple[int | None, ...], Sequence[Sizes]]] = {}


def sizes_of(node: Mapping[str, Any]) -> Sizes:
    """The sizes of the operands of an op.

    Args:
        node: of a description.
    """
    sizes = [
        ((view or base)[0], () if base is None else base[0]) for _, base, view, _ in node["inputs"]
    ]
    filled = node["written"] if node["only_out"] else ()
    numbers = tuple(n for _, values in numbers_of(node) for n in values)
    return (*sizes, *((spec[0], ()) for spec in filled), *([(numbers, ())] if numbers else []))


def numbers_of(node: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """The integer arguments that may vary, by name; those that count from the end do not.

    They are those that PyTorch's schema says may be sizes, or depend on sizes.

    Args:
        node: of a description.
    """
    names = _size_arguments(node["name"])
    found = [
        (name, tuple(payload) if isinstance(payload, (list, tuple)) else (payload,))
        for name, _, kind, payload in node["args"]
        if name in names and kind == "constant"
    ]
    return [each for each in found if all(isinstance(n, int) and n >= 0 for n in each[1])]


@functools.cache
def _size_arguments(name: str) -> frozenset[str]:
    """Names of the arguments of an op that may be symbols while PyTorch traces."""
    try:
        schema = operator(name)._schema
    except AttributeError:  # a row of its own, such as a loaded model's
        return frozenset()
    return frozenset(_SIZE_ARGUMENT.findall(str(schema)))


def sizes_seen(description: Description) -> Sequence[Sizes]:
    """Note a trace of one op; the sizes its site has had, if they vary, the present ones last.

    Sizes of 0 and 1 are never open: they broadcast.
    """
    return _sizes_seen(description["nodes"][0]) if len(description["nodes"]) == 1 else ()


def note_ops(description: Description) -> None:
    """Note each op of a trace that runs as one program, found in the cache or at padded sizes.

    The process that made the program ran them one by one before, and learnt of their sizes then.
    Without that this one would want programs for later sizes that the other did without.
    """
    for node in description["nodes"]:
        _sizes_seen(node)


def _sizes_seen(node: Mapping[str, Any]) -> Sequence[Sizes]:
    if not node["site"]:
        return _seen_by_call(node)
    sizes = sizes_of(node)
    form = tuple(tuple(n if n < 2 else None for n in part) for pair in sizes for part in pair)
    with _lock:
        line = (node["line"], node["name"], form)
        at_site = _noted((node["site"], form), sizes)
        recently = _noted((node["recent"], form), sizes)
        at_line = _noted(line, sizes)
        if len(at_site) > _OWN_PROGRAMS:
            _note_varied(line, at_site)
            return at_site
        if len(alike := _alike(at_site, at_line)) > _OWN_PROGRAMS:
            return alike
        if known := _known_to_vary(line, sizes):
            return known
        if not _grows_steadily(recently[-_OWN_PROGRAMS - 1 :]):
            return ()
        if _grows_steadily(recently[-_MANY_SIZES:]):  # what is left out would end this
            _note_varied(line, recently)
    return recently


def _seen_by_call(node: Mapping[str, Any]) -> Sequence[Sizes]:
    """The sizes that a compiled graph was called with, which is a place of its own."""
    if tables.is_core(node["row"]):
        return ()  # an op of a mode that keeps no record of the script
    with _lock:
        seen = _noted(("call", id(node["row"])), sizes_of(node))  # rows of calls are never freed
    return seen if len(seen) > _OWN_PROGRAMS else ()


def _alike(at_site: Sequence[Sizes], at_line: Sequence[Sizes]) -> Sequence[Sizes]:
    """The sizes of a line that differ from a site's only in what varies there.

    So the sites of a line share what they learn: a loop over experts, whose rows vary, has a site
    for each of them.
    """
    rows = [_flat(sizes) for sizes in at_site]
    varies = [len(set(column)) > 1 for column in zip(*rows, strict=True)]
    if not any(varies):
        return ()
    return tuple(
        sizes
        for sizes in at_line
        if all(a == b or v for a, b, v in zip(_flat(sizes), rows[-1], varies, strict=True))
    )


def _note_varied(line: tuple[object, ...], seen: Sequence[Sizes]) -> None:
    if len(seen) < _MANY_SIZES:
        return
    known = _remembered(_varied, line, {})
    columns = zip(*map(_flat, seen), strict=True)
    fixed = tuple(column[0] if len(set(column)) == 1 else None for column in columns)
    if fixed in known or len(known) < _MOST_SIZES:
        known[fixed] = seen


def _known_to_vary(line: tuple[object, ...], sizes: Sizes) -> Sequence[Sizes]:
    """The sizes of another site of a line, which had many, and these, if no fixed one differs.

    A loop over experts that leaves out those without rows has new sites for all that follow.
    """
    row = _flat(sizes)
    for fixed, seen in _varied.get(line, {}).items():
        if all(a is None or a == b for a, b in zip(fixed, row, strict=True)):
            return (*(other for other in seen if other != sizes), sizes)
    return ()


def _flat(sizes: Sizes) -> list[int]:
    return [n for pair in sizes for part in pair for n in part]


def forget() -> None:
    """Forget all sites."""
    with _lock:
        _sites.clear()
        _varied.clear()


def _noted(key: tuple[object, ...], sizes: Sizes) -> Sequence[Sizes]:
    """The different sizes of a place, these last."""
    seen = _remembered(_sites, key, [])
    if sizes in seen:
        seen.remove(sizes)
    seen.append(sizes)
    if len(seen) > _MOST_SIZES:
        del seen[0]
    return tuple(seen)


def _remembered(table: dict[_Key, _Seen], key: _Key, new: _Seen) -> _Seen:
    """What is known of a key, now the latest of a table that forgets those longest unseen."""
    table[key] = known = table.pop(key, new)
    if len(table) > _MOST_SITES:
        del table[next(iter(table))]
    return known


def _grows_steadily(seen: Sequence[Sizes]) -> bool:
    """Whether sizes are further apart by the same each time, and no program of their own is due."""
    if len(seen) <= _OWN_PROGRAMS:
        return False
    rows = [_flat(sizes) for sizes in seen]
    return all(
        later - earlier == rows[1][i] - rows[0][i] >= 0
        for before, after in itertools.pairwise(rows)
        for i, (earlier, later) in enumerate(zip(before, after, strict=True))
    )
