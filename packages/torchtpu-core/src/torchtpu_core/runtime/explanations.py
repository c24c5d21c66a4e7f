# SPDX-License-Identifier: Apache-2.0
"""What Fused Eager did and why, in words: `torch.tpu.explain()`.

For each program that was asked for: the trace's length, where and why it ended, and how
it differs from the nearest trace that had a program. A script that keeps asking for
programs of the same calls, or for very many that end at one line, is told so, once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from torchtpu_core.env_values import LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime import script_warnings
from torchtpu_core.runtime.trace_lowering import Description

log = logging.getLogger("torchtpu")

_KEPT = 64
_NEAREST = 16
#: Programs of the same calls after which the script is told that it recompiles.
_STEADY = 8
#: Programs of any calls that end at one line: a helper that reads values ends streams of many
#: kinds.
_MANY = 32


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """A program that was asked for.

    Attributes:
        ops: operators in the trace.
        reason: why the trace ended.
        line: the user's line of the last operator that has one, or ``""``.
        difference: from the nearest trace known before, or ``""`` for the first.
        error: why it could not be built, or ``""``.
    """

    ops: int
    reason: str
    line: str
    difference: str
    error: str = ""


_compiles: deque[CompileEvent] = deque(maxlen=_KEPT)
_known: deque[list[str]] = deque(maxlen=_NEAREST)
_by_line: Counter[str] = Counter()
_by_calls: Counter[tuple[str, int]] = Counter()
_warned: set[str] = set()


def note_compile(description: Description, reason: str, *, again: bool = True) -> None:
    """Remember that a program was asked for, and why.

    Args:
        description: its trace.
        reason: why that ended.
        again: the trace came back. One that is new tells nothing about a script that recompiles.
    """
    nodes = description["nodes"]
    ops = [_words(node) for node in nodes]
    line = _last_line(nodes)
    event = CompileEvent(len(nodes), reason, line, _difference(ops, nodes))
    _compiles.append(event)
    _known.append(ops)
    if LogTopic.RECOMPILES in settings().log:
        log.warning(
            "<TorchTpu/recompiles> %d ops up to %s (%s)%s",
            event.ops,
            line or "an unknown line",
            reason,
            f": {event.difference}" if event.difference else "",
        )
    if again:
        _count(nodes, line, event)


def _count(nodes: list[dict[str, Any]], line: str, event: CompileEvent) -> None:
    """Warn once of a place that programs are asked for again and again."""
    place = line or nodes[-1]["name"]
    _by_line[place] += 1
    calls = place, hash(tuple((node["name"], node["line"]) for node in nodes))
    _by_calls[calls] += 1
    alike, at_line = _by_calls[calls], _by_line[place]
    if (alike == _STEADY or at_line == _MANY) and place not in _warned:
        _warned.add(place)
        count = _STEADY if alike == _STEADY else _MANY
        script_warnings.warn_at(
            line,
            f"<TorchTpu/fused> {count} programs were compiled for the operators up to {place}. "
            f"The last differs in: {event.difference or 'which results are still in use'}. "
            "torch.tpu.explain() lists them all.",
            UserWarning,
        )


def note_refusal(description: Description, error: BaseException) -> None:
    """Remember that a program could not be built."""
    nodes = description["nodes"]
    _compiles.append(
        CompileEvent(
            len(nodes), "not built", _last_line(nodes), "", f"{type(error).__name__}: {error}"
        )
    )


def compiles() -> list[CompileEvent]:
    """The last programs that were asked for, oldest first."""
    return list(_compiles)


def _last_line(nodes: list[dict[str, Any]]) -> str:
    """What libraries do in autograd's threads has no line: that of what went before then."""
    return next((node["line"] for node in reversed(nodes) if node["line"]), "")


def _words(node: dict[str, Any]) -> str:
    """The op with its operands' shapes, as ``aten::add.Tensor(float32[8, 4], float32[4])``."""
    operands = ", ".join(_shape(view or base) for _, base, view, _ in node["inputs"])
    return f"{node['name']}({operands})"


def _shape(geometry: Any) -> str:
    if geometry is None:
        return "unset"
    sizes, _, dtype = geometry
    return f"{str(dtype).removeprefix('torch.')}{list(sizes)}"


def _difference(ops: list[str], nodes: list[dict[str, Any]]) -> str:
    """In words, from the nearest known trace."""
    if not _known:
        return ""
    nearest = min(_known, key=lambda known: _distance(known, ops))
    if nearest == ops:
        return "the same operators; other results are still in use when the trace ends"
    pairs = enumerate(zip(nearest, ops, strict=False))
    index = next((i for i, (a, b) in pairs if a != b), min(len(nearest), len(ops)))
    if index >= len(ops):
        return f"ends after {len(ops)} of the {len(nearest)} ops of a known trace"
    where = nodes[index]["line"] or "an unknown line"
    before = nearest[index] if index < len(nearest) else "nothing"
    return f"op {index} is {ops[index]} ({where}), where a known trace has {before}"


def _distance(known: list[str], ops: list[str]) -> int:
    """How unlike two traces are: other operators weigh more than other shapes."""
    distance = 2 * abs(len(known) - len(ops))
    for a, b in zip(known, ops, strict=False):
        if a != b:
            distance += 1 if a.partition("(")[0] == b.partition("(")[0] else 2
    return distance


def log_flush(reason: str, outcome: str, ops: int, requested: bool, line: str) -> None:
    """Report a flush (``TORCH_TPU_LOG=flushes``); C++ calls this."""
    log.warning(
        "<TorchTpu/flushes> %d ops, %s%s, ended by %s at %s",
        ops,
        outcome,
        ", program requested" if requested else "",
        reason,
        line or "an unknown line",
    )
