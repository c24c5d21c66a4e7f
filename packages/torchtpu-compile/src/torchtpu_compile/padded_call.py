# SPDX-License-Identifier: Apache-2.0
"""A call of an op at padded sizes, in place of a program of its true sizes.

Operands are padded and results cut back in host memory, which on simulated targets is the
device's. What has its true size already is passed as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import background, host_views, programs, transfers
from torchtpu_core.runtime.trace_lowering import Description

from torchtpu_compile.buckets import fine
from torchtpu_compile.open_op import Executable, OpenOps
from torchtpu_compile.symbols import Unbounded

#: Of an update, instead of the operand that it changes; below it, results of the op itself.
_UNWRITTEN = -1
#: How often a call whose sizes come often uses what it ran before it looks for less padding again.
_USES = 16
#: Of a call whose sizes come often, before it gets a program without padding.
_CALLS_BEFORE_EXACT = 8
_MOST_EXACT = 32  # of one op


class ExactCall:
    """The program of a call at its true sizes, which is made if it is worth one.

    It takes and returns what the call at padded sizes does, without copies.
    """

    def __init__(self, description: Description) -> None:
        self.call: Callable[..., Sequence[jax.Array]] | None = None
        self._description: Description | None = description
        self._calls = 0

    def want(self, op: OpenOps) -> None:
        """Note one more call; once they are many it is made, on the compiling thread."""
        self._calls += 1
        description = self._description
        if description is None or self._calls < _CALLS_BEFORE_EXACT or op.exact >= _MOST_EXACT:
            return
        op.exact += 1
        self._description = None
        request = functools.partial(self._make, description)
        background.make_later(request, len(description["nodes"]))

    def _make(self, description: Description) -> None:
        try:
            made = programs.compile_program(description)
        except Exception:  # the call at padded sizes does it, or says why not
            return
        if not made.checks and made.positions == list(range(len(description["live"]))):
            self.call = made.call


class PaddedCall:
    """What C++ calls for one combination of true sizes.

    Args:
        op: the op.
        description: the trace of this one op.
        true: the value of each symbol.
        later: have programs compiled on the compiling thread.

    Raises:
        Unbounded: the op cannot run at padded sizes.
    """

    def __init__(
        self, op: OpenOps, description: Description, true: tuple[int, ...], *, later: bool
    ) -> None:
        nodes = description["nodes"]
        self._op, self._later = op, later
        #: The sizes; numbers that are no part of one need no padding.
        self._shaping = tuple(n if s else 1 for n, s in zip(true, op.graph.shaping, strict=True))
        self._fits_finely = self._shaping == tuple(map(fine, self._shaping))
        self._is_frequent = False
        self._last: Executable | None = None
        self._uses = 0  # of the last one, before another is looked for
        self._exact = ExactCall(description)
        self._sizes = np.asarray(np.minimum(true, np.iinfo(np.int32).max), np.int32)
        self._device = description["device"]
        self._takes_words = bool(description["scalar_count"])
        graph = op.graph
        self._inputs = [_Input(nodes[number]["inputs"][index]) for number, index in graph.reads]
        #: Views that never change, of values that never do, are read by the program.
        self._reads = tuple(
            all(isinstance(n, int) for part in graph.pattern[number][index] for n in part)
            for number, index in graph.reads
        )
        self._way = op.way(description, self._reads)
        self._outputs = [_Output(nodes[n]["outputs"][i], nodes[n]) for n, i in description["live"]]
        spans = list(starts_of_views(nodes))
        self._starts_in = [spans[number][0][index] for number, index in graph.reads]
        self._starts_out = [spans[number][1][index] for number, index in description["live"]]
        copied = [
            span
            for span, way, read in zip(self._starts_in, self._inputs, self._reads, strict=True)
            if not read and not way.is_whole
        ]
        written = [s for s, o in zip(self._starts_out, self._outputs, strict=True) if o.is_update]
        self._needs_starts = any(span.stop > span.start for span in (*copied, *written))

    def executable(self) -> Executable:
        """What runs this call at padded sizes now; sizes that come often get less padding.

        Raises:
            NotReadyError: nothing does yet.
        """
        if self._uses == 0 or self._last is None:
            self._last = self._least_padded()
            self._uses = _USES if self._is_frequent else 1
        self._uses -= 1
        if self._is_frequent and self._fits_finely:
            self._exact.want(self._op)
        return self._last

    def _least_padded(self) -> Executable:
        op, true = self._op, self._shaping
        padded = op.policy.padded(true, (None,) * len(true))
        self._is_frequent = op.policy.is_frequent(true)
        if self._is_frequent and self._fits_finely:
            known = op.known_executable(self._way, true)
            if known is not None:
                return known
        if not self._later:
            return op.roomy_executable(self._way, padded, true)
        return op.ready_executable(self._way, padded, true)

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """The results at their true sizes, flags of checks last.

        Args:
            arrays: the operands of the trace, then the scalar words if it has any.
        """
        if self._exact.call is not None:
            return self._exact.call(*arrays)
        executable = self.executable()
        words = arrays[-1] if self._takes_words else None
        starts = host_views.starts_of(words) if self._needs_starts else []
        operands: list[Any] = []
        for way, read, sizes, span in zip(
            self._inputs, self._reads, executable.operands, self._starts_in, strict=True
        ):
            if way.operand is None:
                continue
            array = arrays[way.operand]
            if not read and not (way.is_whole and way.view.sizes == sizes):
                tensor = way.read(array, starts[span])
                array = transfers.put(_padded(tensor, sizes), self._device)
            operands.append(array)
        extra = () if words is None else (words,)
        results = list(executable.program.call(*operands, self._sizes, *extra))
        for i, (output, span) in enumerate(zip(self._outputs, self._starts_out, strict=True)):
            results[i] = output.cut(results[i], arrays, starts[span], self._device)
        return results


def starts_of_views(
    nodes: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[list[slice], list[slice]]]:
    """Of each op, where among the scalars the starts of its inputs' and outputs' views are."""
    at = 0
    for node in nodes:
        plans = [i[3] for i in node["inputs"]], [o[3] for o in node["outputs"]]
        spans: tuple[list[slice], list[slice]] = ([], [])
        for of, of_plans in zip(spans, plans, strict=True):
            for *_, count, _ in of_plans:
                of.append(slice(at, at + count))
                at += count
        at += node["scalars"]
        yield spans


def _padded(tensor: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    if tensor.shape == tuple(sizes):
        return np.asarray(tensor, order="C")
    room = np.zeros(sizes, tensor.dtype)
    room[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return room


class _Input:
    """How a tensor lies in an operand."""

    def __init__(self, described: Sequence[Any]) -> None:
        place, base, view, plan = described
        self.operand: int | None = None if place is None else place[1]
        self.view, self.plan = Geometry(*view), Plan(*plan)
        self.base = self.view if base is None else Geometry(*base)
        self.is_whole = place is None or self.plan.kind == "identity"

    def read(self, array: jax.Array, starts: Sequence[int]) -> np.ndarray:
        """The tensor's elements."""
        host = host_views.on_host(array)
        return host_views.read(host, self.base, self.view, self.plan, starts)


class _Output:
    """What becomes of a result."""

    def __init__(self, described: Sequence[Any], node: Any) -> None:
        geometry, self.is_update, base, plan, sizes = described
        self.geometry, self.plan, self.sizes = Geometry(*geometry), Plan(*plan), tuple(sizes)
        if base < _UNWRITTEN:
            raise Unbounded("it writes a storage twice")
        self.base = None if base == _UNWRITTEN else node["inputs"][base][0][1]
        index = node["outputs"].index(described)
        fresh = sum(len(specs) for _, specs in node["outs"])
        spec = node["written"][index - fresh] if index >= fresh else geometry
        self.view = Geometry(*spec)

    def cut(
        self, array: jax.Array, operands: Sequence[jax.Array], starts: Sequence[int], device: int
    ) -> jax.Array:
        """The result at its true size; an update, in the storage's other elements."""
        if array.shape == self.sizes and not self.is_update:
            return array
        host = host_views.on_host(array)[tuple(slice(0, n) for n in self.sizes)]
        if self.is_update:
            old = (
                np.zeros(self.geometry.sizes, dtypes.to_numpy(self.geometry.dtype))
                if self.base is None
                else host_views.on_host(operands[self.base])
            )
            host = host_views.written(old, self.geometry, self.view, self.plan, starts, host)
        return transfers.put(np.asarray(host, order="C"), device)
