# SPDX-License-Identifier: Apache-2.0
"""Trip counts of loops, where the text shows them.

Understands what ``lax.scan`` and ``lax.fori_loop`` print: a counter that starts at a
constant, is compared with a constant, and changes by a constant. Anything else is
unknown, which is not the same as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchtpu_core.simulator.hlo_text import Operation
from torchtpu_core.units import ceil_div

_NAME = r"%[\w$.#-]+"
_INTEGER = re.compile(r"\s*dense<(-?\d+)> : tensor<u?i\d+>")
_STARTS = re.compile(rf"({_NAME}) = ({_NAME})")
_COMPARE = re.compile(rf"\s*([A-Z]{{2}}),\s+({_NAME}), ({_NAME})")
_BINARY = re.compile(rf"\s*({_NAME}), ({_NAME})")
_NAMES = re.compile(_NAME)
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def integers(operations: Sequence[Operation]) -> dict[str, int]:
    """The scalar integer constants among operations, by result name."""
    return {
        operation.result: int(match[1])
        for operation in operations
        if operation.name == "stablehlo.constant" and (match := _INTEGER.fullmatch(operation.text))
    }


def trip_count(loop: Operation, outer: Mapping[str, int]) -> int | None:
    """How often the body of a ``stablehlo.while`` runs, None if that is not evident.

    Args:
        loop: the operation, its condition and body being its two regions.
        outer: integer constants that are visible where the loop stands.
    """
    if len(loop.regions) != 2:
        return None
    condition, body = loop.regions
    carried = dict(_STARTS.findall(loop.text))
    compared = _comparison(condition)
    returned = _returned(body)
    if compared is None or len(returned) != len(carried):
        return None
    following = dict(zip(carried, returned, strict=True))
    constants = {**outer, **integers(condition)}
    for name, start in carried.items():
        if following[name] == name and start in outer:
            constants[name] = outer[start]
    relation, counter, limit = compared
    if counter not in carried:
        relation, counter, limit = _MIRRORED.get(relation, ""), limit, counter
    if counter not in carried or limit not in constants or carried[counter] not in outer:
        return None
    step = _step(body, counter, following[counter], {**outer, **integers(body)})
    return _count(relation, outer[carried[counter]], constants[limit], step)


def _comparison(condition: Sequence[Operation]) -> tuple[str, str, str] | None:
    """Relation and operands of the comparison that a condition returns."""
    returned = _returned(condition)
    for operation in condition:
        if operation.name == "stablehlo.compare" and [operation.result] == returned:
            match = _COMPARE.match(operation.text)
            return (match[1], match[2], match[3]) if match else None
    return None


def _returned(region: Sequence[Operation]) -> list[str]:
    """The names that a region returns."""
    if not region or not region[-1].name.endswith("return"):
        return []
    return _NAMES.findall(region[-1].text.partition(" : ")[0])


def _step(
    body: Sequence[Operation], counter: str, following: str, constants: Mapping[str, int]
) -> int:
    """By how much a counter changes in one run of the body; 0 if that is not evident."""
    for operation in body:
        match = _BINARY.match(operation.text) if operation.result == following else None
        if match is None:
            continue
        operands = [match[1], match[2]]
        if operation.name == "stablehlo.subtract" and operands[0] == counter:
            return -constants.get(operands[1], 0)
        if operation.name == "stablehlo.add" and counter in operands:
            operands.remove(counter)
            return constants.get(operands[0], 0)
    return 0


def _count(relation: str, start: int, limit: int, step: int) -> int | None:
    """Runs of a counter from `start` by `step` while it is in `relation` to `limit`."""
    if step < 0:
        relation, start, limit, step = _MIRRORED.get(relation, ""), -start, -limit, -step
    if step == 0:
        return None
    if relation == "NE":
        distance = limit - start
        return distance // step if distance >= 0 and distance % step == 0 else None
    if relation not in ("LT", "LE"):
        return None
    distance = limit - start + (relation == "LE")
    return max(0, ceil_div(distance, step))
