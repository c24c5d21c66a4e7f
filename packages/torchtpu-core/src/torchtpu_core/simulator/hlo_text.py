# SPDX-License-Identifier: Apache-2.0
"""Reads the text of a StableHLO module into a tree of operations.

A line-by-line reader of the form that JAX prints, one operation per line, not a parser
of MLIR: attributes stay text, and operations it has never seen are kept like others.
What an operation costs is the business of `simulator.stablehlo`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchtpu_core.errors import ProgramTextError
from torchtpu_core.simulator.tensor_type import TENSOR, TensorType, parse_type, types_in

_OPERATION = re.compile(
    r"(?:(?P<result>%[\w$.-]+)(?::\d+)?(?:, %[\w$.:-]+)* = )?"
    r"\"?(?P<name>[a-zA-Z_]\w*(?:\.[\w$]+)*)\"?(?P<rest>.*)"
)
_FUNCTION = re.compile(r"func\.func (?:\w+ )?@(?P<name>\"[^\"]*\"|[\w$.-]+)\((?P<rest>.*)")
_ARGUMENT = re.compile(r"(?P<name>%[\w$.-]+): (?P<type>" + TENSOR.pattern + r")")
_CALLEE = re.compile(r"@(\"[^\"]*\"|[\w$.-]+)")
_PARTITIONS = re.compile(r"num_partitions = (\d+)")
_REPLICAS = re.compile(r"num_replicas = (\d+)")
_MESH = re.compile(r"sdy\.mesh @(?P<name>[\w$.-]+) = <\[(?P<axes>[^\]]*)\]")
_AXIS = re.compile(r"\"([^\"]+)\"=(\d+)")
_LOCATION = re.compile(r"\s+loc\((?:[^()]|\([^()]*\))*\)$")
_REGION_WORDS = ("cond {", "do {", "reducer(")


@dataclass(slots=True)
class Operation:
    """One operation.

    Attributes:
        name: full name, such as ``stablehlo.add``; ``call`` and ``return`` have no dot.
        result: name of its first result, or empty.
        text: operands and attributes, as printed.
        signature: its types, as printed after the last colon.
        regions: the operations nested in it, region by region.
    """

    name: str
    result: str = ""
    text: str = ""
    signature: str = ""
    regions: list[list[Operation]] = field(default_factory=list)

    @property
    def operand_types(self) -> list[TensorType]:
        """Types of its operands; where only one list is printed, that list."""
        return types_in(self.signature.partition(" -> ")[0])

    @property
    def result_types(self) -> list[TensorType]:
        """Types of its results; where only one list is printed, that list."""
        head, arrow, tail = self.signature.partition(" -> ")
        return types_in(tail if arrow else head)

    @property
    def callee(self) -> str:
        """The function it names, or empty."""
        match = _CALLEE.search(self.text)
        return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class Value:
    """An argument or a result of a function: its type and its attributes, as printed."""

    type: TensorType
    attributes: str


@dataclass(slots=True)
class Function:
    """A function: its arguments, results and operations."""

    arguments: list[Value]
    results: list[Value]
    body: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """A module.

    Attributes:
        functions: by name, in order; the entry is ``main``, or the first.
        meshes: axis sizes by mesh name.
        partitions: devices that share the program's arrays.
        replicas: copies of the program.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    meshes: dict[str, dict[str, int]] = field(default_factory=dict)
    partitions: int = 1
    replicas: int = 1

    @property
    def entry(self) -> Function:
        """The function that runs."""
        if not self.functions:
            raise ProgramTextError(
                "The text holds no function. Pass the StableHLO that jax prints: "
                "jax.jit(f).lower(...).as_text()."
            )
        return self.functions.get("main") or next(iter(self.functions.values()))


def read_module(text: str) -> Module:
    """The module of a text as ``jax.jit(f).lower(...).as_text()`` gives it.

    Raises:
        ProgramTextError: no function in it, or regions that do not close.
    """
    reader = _Reader()
    for raw in text.splitlines():
        line = raw.strip()
        if line:
            reader.take(_LOCATION.sub("", line) if line.endswith(")") else line)
    if reader.open:
        raise ProgramTextError("The text ends inside a function: it has been cut off.")
    _ = reader.module.entry
    return reader.module


class _Reader:
    """Keeps the regions that are open while lines come in."""

    def __init__(self) -> None:
        self.module = Module()
        # Each open region with the operation it belongs to, None for a function.
        self.open: list[tuple[list[Operation], Operation | None]] = []

    def take(self, line: str) -> None:
        """Reads one line, without leading and trailing blanks."""
        if line.startswith("func.func "):
            self._start_function(line)
        elif not self.open:
            self._read_header(line)
        elif line.startswith("}"):
            self._close(line)
        elif line.startswith(_REGION_WORDS) and self.open[-1][0]:
            self._enter(self.open[-1][0][-1])
        elif not line.startswith(("^", "#", "//")):
            self._add(line)

    def _read_header(self, line: str) -> None:
        if line.startswith("module"):
            for pattern, name in ((_PARTITIONS, "partitions"), (_REPLICAS, "replicas")):
                if match := pattern.search(line):
                    setattr(self.module, name, int(match[1]))
        elif match := _MESH.match(line):
            sizes = {axis: int(size) for axis, size in _AXIS.findall(match["axes"])}
            self.module.meshes[match["name"]] = sizes

    def _start_function(self, line: str) -> None:
        match = _FUNCTION.match(line)
        if match is None:
            raise ProgramTextError(f"Not a function of StableHLO's textual form: {line[:120]}")
        arguments, _, results = match["rest"].partition(") -> ")
        function = Function(_values(_ARGUMENT, arguments), _values(TENSOR, results))
        self.module.functions[match["name"]] = function
        if line.endswith("{"):
            self.open.append((function.body, None))

    def _enter(self, owner: Operation) -> None:
        owner.regions.append([])
        self.open.append((owner.regions[-1], owner))

    def _close(self, line: str) -> None:
        """Ends a region; the line may start the next one or state the types."""
        _, owner = self.open.pop()
        if owner is None:
            return
        if line.endswith("{"):
            self._enter(owner)
        elif " : " in line:
            owner.signature = line.rpartition(" : ")[2]

    def _add(self, line: str) -> None:
        match = _OPERATION.match(line)
        if match is None:
            raise ProgramTextError(f"Not an operation of StableHLO's textual form: {line[:120]}")
        operation = Operation(match["name"], match["result"] or "", match["rest"])
        self.open[-1][0].append(operation)
        if line.endswith("{"):
            self._enter(operation)
        else:
            operation.signature = match["rest"].rpartition(" : ")[2]


def _values(pattern: re.Pattern[str], text: str) -> list[Value]:
    """The types that `pattern` finds, each with the text up to the next one."""
    found = list(pattern.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [
        Value(
            parse_type(match["type"] if "type" in pattern.groupindex else match[0]),
            text[match.end() : end],
        )
        for match, end in zip(found, ends, strict=False)
    ]
