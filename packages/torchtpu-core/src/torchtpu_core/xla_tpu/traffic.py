# SPDX-License-Identifier: Apache-2.0
"""Bytes that an instruction of a scheduled program moves through HBM.

Of operands that are sliced the slices, of buffers that are updated in place the updates, as loops
do with their rows. Imports neither torch nor JAX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchtpu_core.xla_tpu.hlo import Instruction, Module

UPDATE = "dynamic-update-slice"
_SLICED = frozenset(("slice", "dynamic-slice", "gather"))
_PLACE = re.compile(r"parameter\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of the instructions of a module, which are known by name."""

    _module: Module
    _known: Mapping[str, Instruction]

    def hbm_bytes(self, one: Instruction) -> float:
        """Bytes of operands and results that lie in HBM; of sliced ones, the slices."""
        total = 0.0
        sliced, updated = self._sliced(one), self._updated(one)
        for place, name in enumerate(one.operands):
            source = self._known.get(name)
            for array in source.arrays if source is not None else ():
                if array.in_hbm:
                    total += min(array.size_bytes, sliced.get(place, array.size_bytes))
        for place, array in enumerate(one.arrays):
            if array.in_hbm:
                total += min(array.size_bytes, updated.get(place, array.size_bytes))
        return total

    def _sliced(self, one: Instruction) -> dict[int, int]:
        """Bytes that are all an instruction reads of an operand, by the operand's place.

        Those of slices, and none of a buffer that is updated in place.
        """
        if one.opcode in _SLICED:
            return {0: sum(a.size_bytes for a in one.arrays)}
        if one.opcode == UPDATE:
            return {0: 0}
        found: dict[int, int] = {}
        for name in one.called if one.opcode == "fusion" else ():
            body = self._module.computations.get(name, [])
            for parameter in body:
                if parameter.opcode != "parameter":
                    continue
                users = [i for i in body if parameter.name in i.operands]
                whole = [i for i in users if i.opcode not in _SLICED and not _is_room(parameter, i)]
                if users and not whole:
                    place = _PLACE.search(parameter.text)
                    taken = sum(
                        a.size_bytes for i in users if i.opcode in _SLICED for a in i.arrays
                    )
                    found[int(place[1]) if place else 0] = taken
        return found

    def _updated(self, one: Instruction) -> dict[int, int]:
        """Bytes written into larger buffers in place, by the place among the results."""
        if one.opcode == UPDATE:
            return {0: self._size(one.operands[1])}
        found: dict[int, int] = {}
        for name in one.called if one.opcode == "fusion" else ():
            body = {inner.name: inner for inner in self._module.computations.get(name, [])}
            root = next((inner for inner in body.values() if inner.root), None)
            results = (
                () if root is None else root.operands if root.opcode == "tuple" else (root.name,)
            )
            for place, result in enumerate(results):
                made = body.get(result)
                while made is not None and made.opcode == "bitcast":
                    made = body.get(made.operands[0])
                if made is not None and made.opcode == UPDATE:
                    found[place] = self._size(made.operands[1])
        return found

    def _size(self, name: str) -> int:
        known = self._known.get(name)
        return sum(a.size_bytes for a in known.arrays) if known is not None else 0


def _is_room(buffer: Instruction, user: Instruction) -> bool:
    """Whether an instruction only writes a part of a buffer, in place."""
    room, *rest = user.operands
    return user.opcode == UPDATE and room == buffer.name and buffer.name not in rest
