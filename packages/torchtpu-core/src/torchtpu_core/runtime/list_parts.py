# SPDX-License-Identifier: Apache-2.0
"""Ops on lists of tensors that run alone: one program for the tensors of a layer, say.

XLA:CPU compiles a kernel for every tensor of a list, also where all are alike, and another list
needs another program. What an op does to the tensors of a list it does to each by itself. So a
program takes some tensors of each kind, and is called until all are done, and a step that leaves
a layer out needs no other program. As part of a larger program the op stays what it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from torchtpu_core.lowering.promotion import SCALAR_WORDS
from torchtpu_core.runtime import fingerprints, transfers
from torchtpu_core.runtime.list_rounds import Round, rounds_of
from torchtpu_core.runtime.trace_lowering import Description

#: The numbers of a part, if it has any.
_Words: TypeAlias = tuple[jax.Array, ...]

#: Names of ops that do the same to each tensor of their lists.
_PREFIX = "aten::_foreach_"

#: Rounds of the lists so far, by op.
_rounds_had: dict[Hashable, dict[Round, None]] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """What an op does to some tensors of its lists.

    Attributes:
        key: equal for parts with one program.
        description: the trace that does it alone.
        operands: of the whole trace, in the part's order.
        scalars: likewise.
        live: which live outputs of the whole trace the part's are.
    """

    key: Hashable
    description: Callable[[], Description]
    operands: Sequence[int]
    scalars: list[int]
    live: Sequence[int]


def parts_of(description: Description) -> list[Part] | None:
    """The parts of a trace of one op on lists; None if it is none, or they hang together.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    if len(description["nodes"]) != 1:
        return None
    (node,) = description["nodes"]
    if not node["name"].startswith(_PREFIX):
        return None
    count = _length(node)
    if count is None:
        return None
    whole = _Whole(description, node, count)
    alike: dict[Hashable, list[int]] = {}
    for place in range(count):
        alike.setdefault(whole.part([place]).key, []).append(place)
    rounds = rounds_of(alike, _rounds_had.setdefault(whole.row, {}))
    parts = [part for part in map(whole.part, rounds) if part.live]
    if not all(part.operands or part.scalars for part in parts):
        return None  # of tensors without elements, say: nothing tells where such a part runs
    donated = {operand for operand, _ in description["donated"]}
    readers = [operand for part in parts for operand in part.operands if operand in donated]
    return parts if 1 < len(parts) < count and len(readers) == len(donated) else None


def _length(node: Mapping[str, Any]) -> int | None:
    """How many tensors the lists have: more than one, in all of them, and each for itself."""
    counts = {len(specs) if kind == "list" else 1 for kind, specs in node["outs"]}
    for _, _, kind, payload in node["args"]:
        if kind == "tensors":
            counts.add(len(payload))
        elif kind == "scalars":
            counts.add(len(payload[0]))
        elif kind == "tensor" and _view(node["inputs"][payload])[0]:
            return None  # it may hold an element for each
        elif kind == "constant" and isinstance(payload, (list, tuple)):
            return None
    if len(counts) != 1 or min(counts) < 2 or len(node["written"]) % min(counts):
        return None
    if any(base < -1 for _, _, base, *_ in node["outputs"]):
        return None  # one write goes on with what another wrote
    return counts.pop()


def _view(read: tuple[Any, ...]) -> Any:
    _, base, view, _ = read
    return view or base


class _Whole:
    """An op on lists and where its parts find their inputs, outputs and numbers."""

    def __init__(self, description: Description, node: Mapping[str, Any], count: int) -> None:
        self.description, self.node, self.count = description, node, count
        self.live = {output: i for i, (_, output) in enumerate(description["live"])}
        self.donated = {output: operand for operand, output in description["donated"]}
        plans = [read[3] for read in node["inputs"]] + [out[3] for out in node["outputs"]]
        self.starts = list(_ranges(plan[4] for plan in plans))
        self.first_scalar = sum(plan[4] for plan in plans)
        context = fingerprints.lowering_context()  # a part may outlive a change of it
        self.row = (node["name"], id(node["row"]), node["precision"], context)

    def part(self, places: Sequence[int]) -> Part:
        """What is done to the tensors at some places of the lists."""
        node = self.node
        outputs = [
            i for first in range(0, len(node["outputs"]), self.count) for i in _at(first, places)
        ]
        bases = {node["outputs"][i][2] for i in outputs} - {-1}
        inputs = _once((*self._read(places), *bases))
        numbers = _once(self._numbers(places))
        sources = (node["inputs"][i][0] for i in inputs)
        operands = _once(source[1] for source in sources if source is not None)
        live = [i for i in outputs if i in self.live]
        own = _Own(places, inputs, outputs, numbers, operands, live)
        starts = [*inputs, *(len(node["inputs"]) + i for i in outputs)]
        return Part(
            key=self._key(own),
            description=lambda: self._described(own),
            operands=operands,
            scalars=[
                *(i for start in starts for i in self.starts[start]),
                *(self.first_scalar + i for i in numbers),
            ],
            live=[self.live[i] for i in live],
        )

    def _read(self, places: Sequence[int]) -> Iterator[int]:
        for _, _, kind, payload in self.node["args"]:
            if kind == "tensor":
                yield payload
            elif kind == "tensors":
                yield from (payload[place] for place in places if payload[place] >= 0)

    def _numbers(self, places: Sequence[int]) -> Iterator[int]:
        for _, _, kind, payload in self.node["args"]:
            if kind == "scalar":
                yield payload[0]
            elif kind == "scalars":
                yield from (payload[0][place] for place in places)

    def _key(self, own: _Own) -> Hashable:
        described = self._node(own)
        live = tuple(i in self.live for i in own.outputs)
        fields = (tuple(described[field]) for field in ("args", "inputs", "outputs", "written"))
        return (self.row, *fields, live, self._gifts(own))

    def _gifts(self, own: _Own) -> tuple[tuple[int, int], ...]:
        pairs = ((self.donated.get(self.live[i]), place) for place, i in enumerate(own.live))
        return tuple((own.operands.index(k), place) for k, place in pairs if k is not None)

    def _node(self, own: _Own) -> dict[str, Any]:
        node = self.node
        fresh = len(node["outputs"]) - len(node["written"])
        return {
            **node,
            "args": [own.arg(arg) for arg in node["args"]],
            "inputs": [(own.source(node, i), *node["inputs"][i][1:]) for i in own.inputs],
            "scalars": len(own.numbers),
            "outs": [
                (kind, [specs[place] for place in own.places]) for kind, specs in node["outs"]
            ],
            "written": [node["written"][i - fresh] for i in own.outputs if i >= fresh],
            "outputs": [own.output(node, i) for i in own.outputs],
        }

    def _described(self, own: _Own) -> Description:
        part = self._node(own)
        starts = sum(item[3][4] for item in (*part["inputs"], *part["outputs"]))
        return {
            **self.description,
            "nodes": [part],
            "operands": [self.description["operands"][i] for i in own.operands],
            "scalar_count": starts + len(own.numbers),
            "live": [(0, own.outputs.index(i)) for i in own.live],
            "donated": list(self._gifts(own)),
        }


@dataclass(frozen=True, slots=True)
class _Own:
    """What of an op belongs to some places of its lists, as indices of the whole."""

    places: Sequence[int]
    inputs: list[int]
    outputs: list[int]
    numbers: list[int]
    operands: list[int]
    live: list[int]

    def arg(self, arg: tuple[Any, ...]) -> tuple[Any, ...]:
        """An argument, which counts what the part has."""
        name, keyword, kind, payload = arg
        if kind == "tensor":
            payload = self.inputs.index(payload)
        elif kind == "tensors":
            read = (payload[place] for place in self.places)
            payload = tuple(self.inputs.index(i) if i >= 0 else -1 for i in read)
        elif kind == "scalar":
            payload = (self.numbers.index(payload[0]), *payload[1:])
        elif kind == "scalars":
            indices, kinds = payload
            payload = (
                tuple(self.numbers.index(indices[place]) for place in self.places),
                "".join(kinds[place] for place in self.places),
            )
        return name, keyword, kind, payload

    def source(self, node: Mapping[str, Any], index: int) -> tuple[str, int] | None:
        """Where an input comes from."""
        place = node["inputs"][index][0]
        return None if place is None else ("operand", self.operands.index(place[1]))

    def output(self, node: Mapping[str, Any], index: int) -> tuple[Any, ...]:
        """An output, whose base counts what the part has."""
        geometry, is_update, base, plan, sizes = node["outputs"][index]
        return geometry, is_update, self.inputs.index(base) if base >= 0 else base, plan, sizes


def _at(first: int, places: Sequence[int]) -> Iterator[int]:
    return (first + place for place in places)


def _once(values: Iterable[int]) -> list[int]:
    """Each value once, in order of the first of its kind."""
    return list(dict.fromkeys(values))


def _ranges(counts: Iterable[int]) -> Iterator[range]:
    first = 0
    for count in counts:
        yield range(first, first + count)
        first += count


#: Programs of parts in use, by key and device.
_known: weakref.WeakValueDictionary[tuple[Hashable, int], Any] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


def programs_of(
    parts: Sequence[Part], device: int, make: Callable[[Description], Any]
) -> list[Any] | None:
    """The program of each part, or None if `make` has none for one of them.

    Args:
        parts: of one trace.
        device: index of the device that runs them.
        make: the program of a trace; asked once for parts that are alike.
    """
    found = []
    for part in parts:
        with _known_lock:
            program = _known.get((part.key, device))
        if program is None:
            program = make(part.description())
            if program is None or program.checks:
                return None
            with _known_lock:
                _known[part.key, device] = program
        found.append(program)
    return found


class Calls:
    """Runs the parts of an op one after the other; called like the program of the whole.

    Args:
        description: the whole.
        parts: of it.
        programs: of each part.
    """

    def __init__(
        self, description: Description, parts: Sequence[Part], programs: Sequence[Any]
    ) -> None:
        self._programs = list(programs)  # they live as long as this
        self._result_count = len(description["live"])
        self._has_words = description["scalar_count"] > 0
        self._device = description["device"]
        self._divided: tuple[Any, list[_Words]] = (None, [()] * len(parts))
        self._scalars = [part.scalars for part in parts]
        self._steps = [
            (program.call, part.operands, list(zip(part.live, program.positions, strict=True)))
            for part, program in zip(parts, programs, strict=True)
        ]

    def __call__(self, *operands: Any) -> Sequence[jax.Array]:
        """The live outputs, in order."""
        known, words_of = self._divided
        if self._has_words and operands[-1] is not known:
            words_of = self._divide(operands[-1])
        results: list[Any] = [None] * self._result_count
        for (call, reads, writes), words in zip(self._steps, words_of, strict=True):
            made = call(*[operands[i] for i in reads], *words)
            for live, position in writes:
                results[live] = made[position]
        return results

    def _divide(self, words: Any) -> list[_Words]:
        """The numbers of each part, on the device; equal ones are put there once."""
        rows = np.asarray(words).reshape(-1, SCALAR_WORDS)
        put: dict[bytes, _Words] = {b"": ()}
        divided = []
        for scalars in self._scalars:
            own = rows[scalars].reshape(-1)
            key = own.tobytes()
            if key not in put:
                put[key] = (transfers.put(own, self._device),)
            divided.append(put[key])
        self._divided = words, divided
        return divided
