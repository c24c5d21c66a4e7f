# SPDX-License-Identifier: Apache-2.0
"""The buffers that XLA assigned in HBM, largest first, each with the user's line.

Read from the compiler's own report of the assignment. Imports neither torch nor JAX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtpu_core.xla_tpu.hlo import Module, arrays_of

_ALLOCATION = re.compile(r"^allocation \d+: size (?P<size>\d+)(?P<rest>.*)$")
_VALUE = re.compile(
    r"^ value: <\d+ (?P<name>[\w.-]+)(?P<place>\{[\d,]*\})? @\d+> "
    r"\(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<type>.*)$"
)
_PARAMETER = re.compile(r"parameter (\d+)")
_COLOUR = re.compile(r"color (\d+)")
#: Buffers below this size are not listed.
SMALLEST_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Values that share one place in HBM.

    Attributes:
        kind: argument, output, temporary or constant.
        size_bytes: of the place, padded to tiles.
        shape: of the largest value in it, as XLA prints it.
        name: of the instruction that makes that value.
        line: the user's line, or empty.
        values: values that use the place, one after another.
    """

    kind: str
    size_bytes: int
    shape: str
    name: str
    line: str
    values: int = 1


def read_buffers(text: str, module: Module) -> list[Buffer]:
    """The buffers of an assignment, largest first.

    Args:
        text: `Compiled.buffers`.
        module: the program, for the lines.
    """
    lines = module.lines()
    names = {name: one.op_name for name, one in module.find().items()}
    found: list[Buffer] = []
    kind, places = "", dict[int, list[tuple[int, str, str]]]()

    def close() -> None:
        for values in places.values():
            size, name, shape = max(values)
            if kind and size >= SMALLEST_BYTES:
                shown = names.get(name) or name if kind == "argument" else name
                line = lines.get(name, "")
                found.append(
                    Buffer(
                        kind=kind,
                        size_bytes=size,
                        shape=shape,
                        name=shown,
                        line=line,
                        values=len(values),
                    )
                )

    for row in text.splitlines():
        allocation = _ALLOCATION.match(row)
        if allocation:
            close()
            kind, places = _kind(allocation["rest"]), {}
            continue
        value = _VALUE.match(row)
        if value and kind and all(array.in_hbm for array in arrays_of(value["type"])):
            shape = value["type"].partition("{")[0]
            entry = (int(value["size"]), value["name"], shape)
            places.setdefault(int(value["offset"]), []).append(entry)
        elif not row:
            break
    close()
    return sorted(found, key=lambda buffer: -buffer.size_bytes)


def _kind(rest: str) -> str:
    """What an allocation is; empty for what is not in HBM."""
    colour = _COLOUR.search(rest)
    if "thread-local" in rest or (colour and colour[1] != "0"):
        return ""
    if _PARAMETER.search(rest):
        return "argument"
    if "constant" in rest:
        return "constant"
    return "temporary" if "preallocated-temp" in rest else "output"


def totals(text: str) -> dict[str, int]:
    """Bytes of all allocations in HBM by kind.

    >>> totals("allocation 0: size 512, parameter 0, shape |f32[8]|\\nallocation 1: size 4096, "
    ...        "preallocated-temp:")
    {'argument': 512, 'output': 0, 'temporary': 4096, 'constant': 0}
    """
    found = dict.fromkeys(("argument", "output", "temporary", "constant"), 0)
    for row in text.splitlines():
        match = _ALLOCATION.match(row)
        kind = _kind(match["rest"]) if match else ""
        if match and kind:
            found[kind] += int(match["size"])
    return found
