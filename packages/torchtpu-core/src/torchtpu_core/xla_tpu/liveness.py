# SPDX-License-Identifier: Apache-2.0
"""How long each temporary of a scheduled program lives in HBM.

From the schedule of the entry computation and the buffers the compiler assigned. Values
that only rename others (tuples, bitcasts, ends of copies) keep what they name alive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu_core.xla_tpu.hlo import Instruction, Module

_VALUE = re.compile(
    r"^ value: <\d+ (?P<name>[\w.-]+)(?:\{(?P<part>[\d,]*)\})? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<at>\d+)"
)
_PART = re.compile(r"\bindex=(\d+)")
_RENAMES = ("bitcast", "get-tuple-element", "tuple", "opt-barrier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A temporary's place in HBM and time in the schedule.

    Attributes:
        name: the instruction that makes it.
        size_bytes: of its place.
        first: index of that instruction in the entry's schedule.
        last: index of the last one that needs it.
        place: its offset among the temporaries.
    """

    name: str
    size_bytes: int
    first: int
    last: int
    place: int


def lives(buffers: str, module: Module) -> list[Life]:
    """The temporaries of the entry computation."""
    entry = module.computations.get(module.entry, [])
    index = {one.name: place for place, one in enumerate(entry)}
    last, parts = _last_needs(entry)
    taken_apart = {name for name, _ in parts}
    found = []
    inside = False
    seen: set[tuple[str, int]] = set()
    for row in buffers.splitlines():
        if row.startswith("allocation"):
            inside = "preallocated-temp" in row and "color" not in row
        elif inside:
            match = _VALUE.match(row)
            if match and match["name"] in index:
                key = (match["name"], int(match["at"]))
                if key not in seen:
                    seen.add(key)
                    first = index[match["name"]]
                    end = last[match["name"]]
                    if match["part"] and match["name"] in taken_apart:
                        end = parts.get((match["name"], match["part"].partition(",")[0]), first)
                    found.append(
                        Life(
                            name=match["name"],
                            size_bytes=int(match["size"]),
                            first=first,
                            last=end,
                            place=int(match["at"]),
                        )
                    )
    return found


def _last_needs(
    entry: Sequence[Instruction],
) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """The last place that needs each result, and each part of those that are tuples.

    A loop leaves its results where its operands are, part by part.
    """
    last = {one.name: place for place, one in enumerate(entry)}
    parts: dict[tuple[str, str], int] = {}
    for place in range(len(entry) - 1, -1, -1):
        one = entry[place]
        if one.opcode == "while":
            for (name, part), needed in [*parts.items()]:
                if name == one.name:
                    parts[one.operands[0], part] = needed
            last[one.operands[0]] = place
            continue
        renames = one.opcode in _RENAMES or one.opcode.endswith(("-done", "-start"))
        taken = _PART.search(one.text) if one.opcode == "get-tuple-element" else None
        for position, name in enumerate(one.operands):
            if name not in last:
                continue
            needed = last[one.name] if renames else place
            if one.opcode == "tuple":
                needed = max(needed, parts.get((one.name, str(position)), 0))
            last[name] = max(last[name], needed)
            if taken:
                key = (name, taken[1])
                parts[key] = max(parts.get(key, 0), needed)
    return last, parts
