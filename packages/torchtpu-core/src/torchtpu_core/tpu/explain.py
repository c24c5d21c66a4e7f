# SPDX-License-Identifier: Apache-2.0
"""Why programs were compiled and traces ended: `torch.tpu.explain()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtpu_core import _C
from torchtpu_core.tpu.counters import compiled

_LISTED = 8  # names of programs, those that were compiled most often


@dataclass(frozen=True, slots=True)
class Flush:
    """A recorded stream of operators that ran.

    Attributes:
        ops: operators in it.
        reason: what ended it: ``host read``, ``optimizer step``, ``synchronize``, ...
        outcome: ``one program``, ``op by op``, or ``in pieces``: sizes differ from those of streams
            before, and what lies between the operators that depend on them ran as programs.
        device: index of the device.
        compile_requested: a program was asked for, since the stream was met before.
        line: the user's line of its last operator.
    """

    ops: int
    reason: str
    outcome: str
    device: int
    compile_requested: bool
    line: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last flushes and compilations, oldest first; printed, it is a summary.

    Attributes:
        flushes: at most 256.
        compiles: of streams that came again and asked for a program of their own, at most 64; each
            says how it differs from the nearest known stream.
        compiling: programs that were asked for and are not there yet.
        compiled: how many programs XLA compiled, by name: their first operators, with ``open`` at
            the end where they run at padded sizes.
    """

    flushes: tuple[Flush, ...]
    compiles: tuple[Any, ...]
    compiling: int
    compiled: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        total = sum(self.compiled.values())
        lines = [f"{total} programs compiled, {self.compiling} under way"]
        most = Counter(self.compiled).most_common(_LISTED)
        lines.extend(f"  {count} x {name}" for name, count in most)
        lines.append(f"{len(self.compiles)} asked for by streams that came again")
        for event in self.compiles:
            what = event.error or event.difference or "the first of its kind"
            lines.append(f"  {event.ops} ops, {event.reason}, {event.line or '?'}: {what}")
        lines.append(f"last {len(self.flushes)} flushes, what repeats together")
        for times, runs in _cycles(_runs(self.flushes)):
            if times > 1:
                lines.append(f"  {times} times:")
            indent = "  " if times == 1 else "    "
            lines.extend(indent + _described(count, flush) for count, flush in runs)
        return "\n".join(lines)


def explain() -> Explanation:
    """What Fused Eager did last, and why.

    Returns:
        Flushes with their reasons, and compilations with what differed from the nearest
        program that was known. Strict and Debug flush after every operator and keep no list.

    >>> print(torch.tpu.explain())  # doctest: +SKIP
    31 programs compiled, 0 under way
      9 x addmm
    1 asked for by streams that came again
      52 ops, optimizer step, train.py:12 in step: the first of its kind
    """
    compiles: tuple[Any, ...] = ()
    compiling = 0
    if _C.is_started():
        from torchtpu_core.runtime import background, explanations

        compiles = tuple(explanations.compiles())
        compiling = background.compiles_under_way()
    flushes = tuple(Flush(**record) for record in _C.flush_records())
    return Explanation(flushes, compiles, compiling, compiled())


def wait_for_compiles() -> None:
    """Wait until the programs that Fused Eager asked for are compiled.

    For measurements: without it, the first steps run op by op while XLA works.
    """
    if _C.is_started():
        from torchtpu_core.runtime import background

        background.wait_for_compiles()


_Run = tuple[int, Flush]


def _described(count: int, flush: Flush) -> str:
    return (
        f"{count} x {flush.ops} ops as {flush.outcome}, ended by {flush.reason}"
        f" at {flush.line or '?'}"
    )


def _cycles(runs: list[_Run]) -> list[tuple[int, list[_Run]]]:
    """Runs that come again in the same order, such as those of a step, with how many times."""
    cycles = []
    first = 0
    while first < len(runs):
        period, times = max(
            ((period, _times(runs, first, period)) for period in range(1, len(runs) - first + 1)),
            key=lambda found: (found[0] * found[1] if found[1] > 1 else 1, -found[0]),
        )
        cycles.append((times, runs[first : first + period]))
        first += period * times
    return cycles


def _times(runs: list[_Run], first: int, period: int) -> int:
    """How many times in a row the runs from `first` on come."""
    cycle = runs[first : first + period]
    end = first + period
    while runs[end : end + period] == cycle:
        end += period
    return (end - first) // period


def _runs(flushes: tuple[Flush, ...]) -> list[_Run]:
    """Equal neighbours counted."""
    runs: list[_Run] = []
    for flush in flushes:
        if runs and runs[-1][1] == flush:
            runs[-1] = (runs[-1][0] + 1, flush)
        else:
            runs.append((1, flush))
    return runs


__all__ = ["Explanation", "Flush", "explain", "wait_for_compiles"]
