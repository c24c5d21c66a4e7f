# SPDX-License-Identifier: Apache-2.0
"""Reads the text of XLA's optimised, scheduled HLO into instructions.

A reader of the form that XLA prints, one instruction per line; what it does not know it
keeps as text. The form may change between versions of libtpu, so that nothing here
depends on an attribute's presence. Imports neither torch nor JAX.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\) -> .*\{\s*$")
_OPCODE = re.compile(r" (?P<opcode>[a-z][a-z0-9-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|called_computations)=\{?%?([\w.-]+)")
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_NAME = re.compile(r"%([\w.-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_LINE = re.compile(r"[\w.-]+\.py:\d+(?: in [^\s/]+)?")
_ARRAY = re.compile(
    r"(?P<dtype>pred|token|opaque|[a-z]+\d+\w*)\[(?P<dims>[\d,<=]*)\]"
    r"(?:\{(?P<order>[\d,]*)(?::(?P<layout>[^{}]*))?\})?"
)
_TILE = re.compile(r"\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True, slots=True)
class Array:
    """An array's type.

    Attributes:
        dtype: such as ``bf16``.
        dims: logical sizes.
        order: dimensions from minor to major.
        tile: the first tile of its layout, empty if it has none.
        space: 0 is HBM, 1 VMEM; others are small.
    """

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def elements(self) -> int:
        """Elements without padding."""
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def size_bytes(self) -> int:
        """Bytes in memory, padded to whole tiles."""
        physical = [self.dims[d] for d in reversed(self.order)] if self.order else list(self.dims)
        for back, tile in enumerate(reversed(self.tile), 1):
            if back <= len(physical):
                physical[-back] = -(-physical[-back] // tile) * tile
        count = 1
        for size in physical:
            count *= size
        return count * bits_of(self.dtype) // 8

    @property
    def in_hbm(self) -> bool:
        """Whether it is kept in HBM."""
        return self.space == 0


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: unique in its module.
        opcode: such as ``fusion`` or ``all-reduce-start``.
        arrays: the arrays of its result, tuples flattened.
        operands: names of its operands.
        text: the whole line after the equals sign.
        root: whether its computation returns it.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str
    root: bool = False

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs."""
        return tuple(_CALLED.findall(self.text))

    @property
    def body(self) -> str:
        """A loop's body, else empty."""
        match = _BODY.search(self.text)
        return match[1] if match else ""

    @property
    def condition(self) -> str:
        """A loop's condition, else empty."""
        match = _CONDITION.search(self.text)
        return match[1] if match else ""

    @property
    def op_name(self) -> str:
        """Where it comes from, in the words of whoever lowered it."""
        match = _OP_NAME.search(self.text)
        return match[1] if match else ""

    @property
    def line(self) -> str:
        """The user's ``file.py:12``, or ``file.py:12 in layers.*``, in its op name; else empty."""
        found = _LINE.findall(self.op_name)
        return found[-1] if found else ""

    @property
    def source(self) -> str:
        """The opcode's operator, as its op name ends: ``dot_general`` or ``tanh``."""
        return self.op_name.rpartition("/")[2]

    def attribute(self, name: str) -> str:
        """The text of a braced or plain attribute, else empty."""
        match = re.search(rf"\b{name}=(\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|[^,\s]+)", self.text)
        return match[1] if match else ""


@dataclass(slots=True)
class Module:
    """A module: its computations, in the order of their schedule, whole once it is asked."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""
    _by_name: dict[str, Instruction] = field(default_factory=dict, repr=False, compare=False)

    def find(self) -> dict[str, Instruction]:
        """All instructions by name."""
        if not self._by_name:  # thousands of instructions ask for their lines one by one
            self._by_name = {i.name: i for body in self.computations.values() for i in body}
        return self._by_name

    def line_of(self, instruction: Instruction, depth: int = 4) -> str:
        """The user's line of an instruction: its own, its fusion's, or an operand's."""
        return next(self._lines(instruction, self.find(), depth), "")

    def lines(self) -> dict[str, str]:
        """The user's line of every instruction that has one."""
        known = self.find()
        return {name: next(self._lines(one, known, 4), "") for name, one in known.items()}

    def _lines(
        self, instruction: Instruction, known: dict[str, Instruction], depth: int
    ) -> Iterator[str]:
        if instruction.line:
            yield instruction.line
        for name in instruction.called:
            for inner in reversed(self.computations.get(name, [])):
                if inner.line:
                    yield inner.line
        if depth:
            for name in instruction.operands:
                if name in known:
                    yield from self._lines(known[name], known, depth - 1)


def read(text: str) -> Module:
    """The module of a text such as ``Compiled.hlo``.

    >>> one = read("ENTRY %main (a: f32[8]) -> f32[8] {\\n  ROOT %t = f32[8]{0} tanh(%a)\\n}\\n")
    >>> one.computations["main"][0].opcode
    'tanh'
    """
    module, body = Module(), None
    for line in text.splitlines():
        if body is None:
            match = _COMPUTATION.match(line)
            if match:
                body = module.computations.setdefault(match["name"], [])
                if match["entry"]:
                    module.entry = match["name"]
        elif line.startswith("}"):
            body = None
        else:
            found = _INSTRUCTION.match(line)
            if found:
                body.append(_instruction(found))
    return module


def _instruction(match: re.Match[str]) -> Instruction:
    rest = match["rest"]
    opcode = _OPCODE.search(rest)
    if opcode is None:
        return Instruction(match["name"], "", arrays_of(rest), (), rest, bool(match["root"]))
    kind, after = rest[: opcode.start()], rest[opcode.end() :]
    operands = tuple(_NAME.findall(after[: _closing(after)]))
    return Instruction(
        match["name"], opcode["opcode"], arrays_of(kind), operands, rest, bool(match["root"])
    )


def _closing(text: str) -> int:
    """Where the bracket that is open at the start closes."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    return len(text)


@functools.lru_cache(maxsize=65536)
def arrays_of(text: str) -> tuple[Array, ...]:
    """The arrays of a type, tuples flattened.

    >>> arrays_of("bf16[100,200]{1,0:T(8,128)(2,1)S(1)}")[0].size_bytes
    53248
    """
    found = []
    for match in _ARRAY.finditer(text):
        dims = tuple(int(d.lstrip("<=")) for d in match["dims"].split(",") if d)
        order = tuple(int(d) for d in (match["order"] or "").split(",") if d)
        layout = match["layout"] or ""
        tile, space = _TILE.search(layout.partition("T")[2]), _SPACE.search(layout)
        found.append(
            Array(
                match["dtype"],
                dims,
                order,
                tuple(map(int, tile[1].split(","))) if tile else (),
                int(space[1]) if space else 0,
            )
        )
    return tuple(found)


def bits_of(dtype: str) -> int:
    """Bits of an element.

    >>> bits_of("bf16"), bits_of("s4"), bits_of("f8e4m3fn"), bits_of("c64")
    (16, 4, 8, 64)
    """
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 8
