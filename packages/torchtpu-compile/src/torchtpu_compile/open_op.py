# SPDX-License-Identifier: Apache-2.0
"""Ops whose operands have open sizes, as a program for each of a few padded sizes."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from torch.fx import Node
from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.promotion import SCALAR_WORDS
from torchtpu_core.runtime import background, clients, compiling, programs
from torchtpu_core.runtime.groups import NotReadyError
from torchtpu_core.runtime.programs import Program
from torchtpu_core.runtime.trace_key import key_of
from torchtpu_core.runtime.trace_lowering import Check, Description

from torchtpu_compile.buckets import BucketPolicy
from torchtpu_compile.errors import describe
from torchtpu_compile.open_graph import OpenGraph, Pattern
from torchtpu_compile.open_lowering import OpenLowering
from torchtpu_compile.padded import Sizes
from torchtpu_compile.step_key import source
from torchtpu_compile.value_bytes import LargestValue

#: Of the largest value of a call that runs with more room than its sizes' bucket has: so many times
#: the bytes of that bucket, or so many bytes.
_MOST_ROOM, _LITTLE_BYTES = 4, 1 << 20
#: Of the first program for sizes that fit no other: so many times their bucket, as far as the
#: largest value stays within so many bytes. Sizes that grow outgrow it late.
_MOST_SPARE, _SPARE_BYTES = 8, 1 << 16
#: Asked for so often, which new sizes do twice, the program of a bucket is made on the compiling
#: thread.
_CALLS_BEFORE_LESS_ROOM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """The ops compiled for padded sizes.

    Attributes:
        program: operands, true sizes and scalar words to results, flags of checks last.
        operands: padded sizes of each tensor read from outside.
    """

    program: Program
    operands: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How calls find their operands.

    Attributes:
        nodes: of the first such call.
        device: the device's index.
        reads: of each tensor read from outside, whether the program reads it from its storage's
            value; else the operand is the tensor, padded.
    """

    nodes: Sequence[Mapping[str, Any]]
    device: int
    reads: tuple[bool, ...]


class OpenOps:
    """Ops that follow each other, at padded sizes.

    Args:
        description: a call of them.
        pattern: their open sizes.
        true: the values of these.
        form: what calls of them have in common besides.

    Raises:
        Unbounded: they have no form for open sizes.
    """

    def __init__(
        self, description: Description, pattern: Pattern, true: Sequence[int], form: str
    ) -> None:
        self.graph = OpenGraph(description, pattern, true)
        self._form = form
        self.live: list[tuple[int, int]] = description["live"]
        self.scalar_count: int = description["scalar_count"]
        self.lock = threading.RLock()
        self._bytes_at = LargestValue(self.graph.values, self.graph.symbols)
        self.policy = BucketPolicy(bytes_at=self._bytes_at)
        #: How many calls have programs without padding.
        self.exact = 0
        #: By way and padded sizes; an error: there is none.
        self._executables: dict[tuple[int, tuple[int, ...]], Executable | Exception] = {}
        self._asked: set[tuple[int, tuple[int, ...]]] = set()
        #: Of padded sizes without a program, calls that ran with more room.
        self._roomy_calls: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._untold = 0
        self._ways: dict[Any, Way] = {}

    def way(self, description: Description, reads: Sequence[bool]) -> Way:
        """The way of a call, the same object for calls that share it.

        Args:
            description: the call.
            reads: of each tensor read from outside, as in `Way`.
        """
        nodes = description["nodes"]
        given = [nodes[op]["inputs"][index] for op, index in self.graph.reads]
        read = [i[1:] if r else None for i, r in zip(given, reads, strict=True)]
        key = description["device"], tuple(read)
        with self.lock:
            return self._ways.setdefault(key, Way(nodes, description["device"], tuple(reads)))

    def executable(self, way: Way, padded: Sequence[int]) -> Executable:
        """The ops compiled for padded sizes.

        Args:
            way: of the call.
            padded: of each symbol.

        Raises:
            Unbounded: an op could see padding, or fails at these sizes.
        """
        key = id(way), tuple(padded)
        with self.lock:
            if key not in self._executables:
                kept = self._kept(way, padded)
                self._executables[key] = kept or self._compile(way, padded)
            made = self._executables[key]
        if isinstance(made, Exception):
            raise made
        return made

    def roomy_executable(self, way: Way, padded: Sequence[int], true: Sequence[int]) -> Executable:
        """The same, or one of more padding that is there, as long as few calls came for the sizes.

        Args:
            way: of the call.
            padded: of each symbol.
            true: sizes that have to fit.

        Raises:
            Unbounded: as above.
        """
        key = id(way), tuple(padded)
        with self.lock:
            known = key in self._executables
            other = None if known else self._with_room(way, padded, true)
            if other is None:
                return self.executable(way, padded if known else self._with_spare(padded))
            self._roomy_calls[key] += 1
            if self._roomy_calls[key] < _CALLS_BEFORE_LESS_ROOM:
                return other
        return self.ready_executable(way, padded, true)

    def _with_room(self, way: Way, padded: Sequence[int], true: Sequence[int]) -> Executable | None:
        """The fitting one of least padding, if that costs little beside a compilation."""
        found = self._fitting(way, true)
        if found is None:
            return None
        sizes, other = found
        most = max(_LITTLE_BYTES, _MOST_ROOM * self._bytes_at(tuple(padded)))
        return other if self._bytes_at(sizes) <= most else None

    def _with_spare(self, padded: Sequence[int]) -> tuple[int, ...]:
        """Larger sizes, at which the ops cost as much as their call."""
        found = tuple(padded)
        for _ in range(_MOST_SPARE.bit_length() - 1):
            shapes = zip(found, self.graph.shaping, strict=True)
            larger = tuple(2 * n if shaping and n > 0 else n for n, shaping in shapes)
            if not 0 < self._bytes_at(larger) <= _SPARE_BYTES:
                break
            found = larger
        return found

    def ready_executable(self, way: Way, padded: Sequence[int], true: Sequence[int]) -> Executable:
        """The same without waiting: until it is compiled, or if it cannot be, one of more padding.

        One is urgent where none that is there fits: the ops run one by one meanwhile.

        Args:
            way: of the call.
            padded: of each symbol.
            true: sizes that have to fit.

        Raises:
            NotReadyError: there is no other.
            Unbounded: as above.
        """
        key = id(way), tuple(padded)
        with self.lock:
            made = self._executables.get(key)
            fitting = self._fitting(way, true)
            other = None if fitting is None else fitting[1]
            if made is None and key not in self._asked:
                self._asked.add(key)
                made = self._kept(way, padded)
                if made is not None:
                    self._executables[key] = made
                else:
                    request = functools.partial(self._make, way, padded)
                    background.make_later(request, len(way.nodes), urgent=other is None)
            if isinstance(made, Executable):
                return made
        if other is not None:
            return other
        if made is not None:
            raise made
        raise NotReadyError("the program of these ops is being compiled")

    def known_executable(self, way: Way, true: Sequence[int]) -> Executable | None:
        """One of the programs that there are, None if `true` sizes fit none of them."""
        with self.lock:
            found = self._fitting(way, true)
        return None if found is None else found[1]

    def _fitting(self, way: Way, true: Sequence[int]) -> tuple[tuple[int, ...], Executable] | None:
        """The one of least padding, and its sizes."""
        found = [
            (sizes, other)
            for (of, sizes), other in self._executables.items()
            if of == id(way) and isinstance(other, Executable)
            if all(n >= least for n, least in zip(sizes, true, strict=True))
        ]
        return min(found, key=lambda other: other[0], default=None)

    def _make(self, way: Way, padded: Sequence[int]) -> None:
        made: Executable | Exception
        try:
            made = self._compile(way, padded)
        except Exception as error:  # who asks next gets it
            made = error
        with self.lock:
            self._executables[id(way), tuple(padded)] = made
            self._untold += 1

    @property
    def count(self) -> int:
        """How many programs there are."""
        return len(self._executables)

    def has_new(self) -> bool:
        """Whether programs were made on the compiling thread since this was asked."""
        with self.lock:
            untold, self._untold = self._untold, 0
        return untold > 0

    def _kept(self, way: Way, padded: Sequence[int]) -> Executable | None:
        """What another process compiled for these sizes; it is neither traced nor lowered."""
        found = programs.find_at_once(self._key(way, padded), way.device)
        if found is None:
            return None
        return Executable(program=found, operands=self._operands(padded))

    def _key(self, way: Way, padded: Sequence[int]) -> str | None:
        """What decides about the program, in text; None if an op has no name in it."""
        given = [way.nodes[op]["inputs"][index] for op, index in self.graph.reads]
        read = [i[1:] if r else None for i, r in zip(given, way.reads, strict=True)]
        told = repr((self.graph.pattern, self.live, read, tuple(map(int, padded))))
        return key_of("open", source(), self._form, told)

    def _operands(self, padded: Sequence[int]) -> list[tuple[int, ...]]:
        sizes = Sizes(dict(zip(self.graph.symbols, map(int, padded), strict=True)), {})
        reads = [self.graph.sizes_read(*read) for read in self.graph.reads]
        return [tuple(map(sizes.padded, exprs)) for exprs in reads]

    def _compile(self, way: Way, padded: Sequence[int]) -> Executable:
        known = dict(zip(self.graph.symbols, map(int, padded), strict=True))
        shapes = self._operands(padded)
        placement = clients.sharding(way.device)

        def struct(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype), sharding=placement)

        avals = []
        for (op, index), shape, read in zip(self.graph.reads, shapes, way.reads, strict=True):
            place, base, view, _ = way.nodes[op]["inputs"][index]
            if place is not None:
                of = (base[0], base[2]) if read else (shape, view[2])
                avals.append(struct(of[0], dtypes.to_numpy(of[1])))
        avals.append(struct((len(known),), np.int32))
        if self.scalar_count:
            avals.append(struct((self.scalar_count * SCALAR_WORDS,), np.uint32))
        lowering = OpenLowering(
            graph=self.graph,
            nodes=way.nodes,
            reads=way.reads,
            live=self.live,
            scalar_count=self.scalar_count,
        )
        found: list[Check] = []
        bytes_: list[int] = []

        def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            with checks.collecting() as collected:
                results = lowering.results(known, arrays, collected)
            found[:] = [
                (error, _own_words(text, self.graph.ops[op].call), op)
                for error, text, op in collected.messages
            ]
            bytes_[:] = [r.size * r.dtype.itemsize for r in results]
            flags = [checks.failed(collected.conditions)] if collected.conditions else []
            return (*results, *flags)

        names = [node["name"].split("::")[-1] for node in way.nodes[:4]]
        name = "+".join([*names, "open"])
        compiled = compiling.compile_function(function, avals, [], name)
        program = Program(
            call=compiled.call,
            positions=list(range(len(self.live))),
            checks=found,
            device_time_ps=compiled.device_time_ps,
            new_bytes=sum(bytes_) + compiled.temporary_bytes,
        )
        key = self._key(way, padded)
        programs.keep_program(key, way.device, name, compiled.executable_key, program)
        return Executable(program=program, operands=shapes)


def _own_words(message: str, call: Node | None) -> str:
    """A check's message as a program of true sizes has it."""
    return message if call is None else message.removesuffix(f", in {describe(call)}")
