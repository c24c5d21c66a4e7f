# SPDX-License-Identifier: Apache-2.0
"""A call that reads parts of storages of varying size, as one program of the parts.

The last token of a sequence that grows is as large as the one before; the storage behind it is
not, and a program that reads the view would be one for each size. The parts are read in host
memory instead, which on simulated targets is the device's, and the program is given them whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from torchtpu_core.lowering.promotion import SCALAR_WORDS
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import host_views, programs, transfers
from torchtpu_core.runtime.programs import Program
from torchtpu_core.runtime.trace_key import trace_key
from torchtpu_core.runtime.trace_lowering import Description

from torchtpu_compile import numbers
from torchtpu_compile.padded_call import starts_of_views

#: Storages of one call whose sizes get programs of their own.
_OWN_PROGRAMS = 2
_WHOLE = ("identity", (), (), (), 0, ())


def program(description: Description, sizes_seen: Sequence[Any]) -> Program | None:
    """The program of the parts that a call reads; None if its storages do not vary alone.

    Args:
        description: a trace of one op.
        sizes_seen: of the op, when the script came by, the present ones last.
    """
    rows = [of_op for (of_op,) in sizes_seen]
    alike = [row for row in rows if _views(row) == _views(rows[-1])]
    inputs = description["nodes"][0]["inputs"]
    parts = [
        index
        for index, operand in enumerate(inputs)
        if _is_part(operand) and len({row[index][1] for row in alike}) > _OWN_PROGRAMS
    ]
    if not parts:
        return None
    call = _PartsCall(description, parts)
    key = trace_key(call.description)
    found = programs.find_program(key, description["device"], remote=False)
    made = found or programs.compile_program(call.description)
    call.program = made
    return Program(
        call=call,
        positions=made.positions,
        checks=made.checks,
        device_time_ps=made.device_time_ps,
        new_bytes=made.new_bytes,
        compiled=found is None,
    )


def _views(row: Sequence[Any]) -> list[Any]:
    return [view for view, _ in row]


def _is_part(operand: Sequence[Any]) -> bool:
    """Whether an input is read, and is not all of its storage's value."""
    place, base, view, plan = operand
    return place is not None and None not in (base, view) and plan[0] in ("slice", "gather")


class _PartsCall:
    """What C++ calls in place of a program that reads the views.

    Args:
        description: a trace of one op.
        parts: which of its inputs are read in host memory.

    Attributes:
        description: the same op on the parts.
        program: of that description.
    """

    program: Program

    def __init__(self, description: Description, parts: Sequence[int]) -> None:
        (node,) = description["nodes"]
        spans, _ = next(starts_of_views([node]))
        self._device = description["device"]
        #: Of each part: its operand, how it lies there, and which scalars say where.
        self._parts = [
            (place[1], Geometry(*base), Geometry(*view), Plan(*plan), spans[index])
            for index in parts
            for place, base, view, plan in [node["inputs"][index]]
        ]
        kept = [i for i in range(len(description["operands"])) if i in _whole(node, parts)]
        self._kept = kept
        dropped = {n for *_, span in self._parts for n in range(span.start, span.stop)}
        self._words = [n for n in range(description["scalar_count"]) if n not in dropped]
        self.description = self._of_parts(description, node, parts)

    def _of_parts(
        self, description: Description, node: Mapping[str, Any], parts: Sequence[int]
    ) -> Description:
        place_of = {old: new for new, old in enumerate(self._kept)}
        inputs, operands = [], [description["operands"][i] for i in self._kept]
        for index, (place, base, view, plan) in enumerate(node["inputs"]):
            if index in parts:
                whole = view[0], numbers.contiguous(view[0]), view[2]
                inputs.append((("operand", len(operands)), whole, whole, _WHOLE))
                operands.append(whole)
            else:
                place = place and ("operand", place_of[place[1]])
                inputs.append((place, base, view, plan))
        donated = [(place_of[i], out) for i, out in description["donated"] if i in place_of]
        return {
            **description,
            "nodes": [{**node, "inputs": inputs}],
            "operands": operands,
            "donated": donated,
            "scalar_count": len(self._words),
        }

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """The results; arguments are the operands of the trace, then its scalar words if any."""
        words = arrays[-1]
        starts = host_views.starts_of(words)
        operands: list[Any] = [arrays[i] for i in self._kept]
        for operand, base, view, plan, span in self._parts:
            host = host_views.on_host(arrays[operand])
            part = host_views.read(host, base, view, plan, starts[span])
            operands.append(transfers.put(np.asarray(part, order="C"), self._device))
        if self._words:
            rows = np.asarray(words).reshape(-1, SCALAR_WORDS)
            operands.append(rows[self._words].reshape(-1))
        return self.program.call(*operands)


def _whole(node: Mapping[str, Any], parts: Sequence[int]) -> set[int]:
    """Operands that are read otherwise than in parts."""
    others = [i[0] for index, i in enumerate(node["inputs"]) if index not in parts]
    return {place[1] for place in others if place is not None}
