# SPDX-License-Identifier: Apache-2.0
"""Ops of Fused Eager whose sizes vary, as few programs.

An op that a script calls with ever new sizes, such as attention over a cache that grows, or a
group of ops whose sizes vary together, runs at padded sizes by the rules of compiled graphs.
Nothing else changes: operands are padded and results cut back in host memory, so that values,
views and keys are those of programs of true sizes. A call that does not fit gets a program of
its own. Where only the storages vary that a call, also of a compiled graph, reads parts of,
`parts_call` serves it.

Legend: the *form* of a call is all that its program depends on but sizes; a *pattern* says
which sizes are open, and which of them are always equal.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchtpu_core.runtime import clients, groups, varying
from torchtpu_core.runtime.programs import Program
from torchtpu_core.runtime.trace_key import identity
from torchtpu_core.runtime.trace_lowering import Description, name_of

from torchtpu_compile import parts_call
from torchtpu_compile.open_graph import FormError, Pattern, Size, link_form
from torchtpu_compile.open_op import OpenOps
from torchtpu_compile.padded_call import PaddedCall
from torchtpu_compile.symbols import Unbounded

#: Why ops of varying sizes have a program per size, and how often one was refused for it.
reasons: Counter[str] = Counter()

_lock = threading.Lock()
#: By form and pattern; an error: it cannot run at padded sizes.
_ops: dict[Any, OpenOps | Unbounded] = {}


def program(description: Description, sizes_seen: Sequence[Any], *, later: bool) -> Program | None:
    """The program of an op of open sizes, or None if it needs one of its true sizes.

    Args:
        description: a trace of one op, or of a group.
        sizes_seen: of each op, when the script came by, the present ones last.
        later: compile on the compiling thread.

    Raises:
        NotReadyError: it is being compiled.
    """
    if clients.client().platform != "cpu":
        return None
    if len(description["nodes"]) == 1 and not later:
        of_parts = parts_call.program(description, sizes_seen)
        if of_parts is not None or not description["nodes"][0]["site"]:
            return of_parts  # without a site it is a compiled graph
    pattern, true = _pattern(sizes_seen)
    if not true:
        return None
    try:
        form = _form(description)
    except Unbounded as error:
        reasons[_reason(description, error)] += 1
        return None
    key = form, pattern
    op = _ops.get(key)
    if op is None:
        with _lock:
            op = _ops.get(key) or _ops.setdefault(key, _made(description, pattern, true, form))
    if isinstance(op, Unbounded):
        return None
    try:
        op.graph.require(description, true)
        call = PaddedCall(op, description, true, later=later)
        known = op.count
        executable = call.executable()
    except groups.NotReadyError:
        raise
    except Exception as error:  # at its true sizes the op works, or says why it does not
        reasons[_reason(description, error)] += 1
        if not isinstance(error, FormError):
            _ops[key] = Unbounded()
        return None
    return Program(
        call=call,
        positions=list(range(len(description["live"]))),
        checks=executable.program.checks,
        device_time_ps=executable.program.device_time_ps,
        new_bytes=executable.program.new_bytes + _live_bytes(description),
        compiled=op.has_new() if later else op.count > known,
    )


def _made(
    description: Description, pattern: Pattern, true: Sequence[int], form: str
) -> OpenOps | Unbounded:
    try:
        return OpenOps(description, pattern, true, form)
    except Exception as error:
        reasons[_reason(description, error)] += 1
        return error if isinstance(error, Unbounded) else Unbounded(str(error))


def _reason(description: Description, error: Exception) -> str:
    text = str(error) if isinstance(error, Unbounded) else f"{type(error).__name__}: {error}"
    return f"{name_of(description)} in eager mode: {text}"


def _live_bytes(description: Description) -> int:
    total = 0
    for op, output in description["live"]:
        sizes, _, dtype = description["nodes"][op]["outputs"][output][0]
        total += math.prod(sizes) * int(dtype.itemsize)
    return total


def _pattern(sizes_seen: Sequence[Any]) -> tuple[Pattern, tuple[int, ...]]:
    """What varies, and the present value of each symbol."""
    flat = [
        [n for of_op in row for pair in of_op for part in pair for n in part] for row in sizes_seen
    ]
    histories = list(dict.fromkeys(h for h in zip(*flat, strict=True) if len(set(h)) > 1))
    joint = len(sizes_seen[-1]) > 1
    symbols, true = _by_freedom(histories) if joint else _by_history(histories)

    def part(parts: Sequence[tuple[int, ...]]) -> tuple[Size, ...]:
        return tuple(symbols.get(history, history[-1]) for history in zip(*parts, strict=True))

    pattern = tuple(
        tuple(
            (part([view for view, _ in operand]), part([base for _, base in operand]))
            for operand in zip(*of_op, strict=True)
        )
        for of_op in zip(*sizes_seen, strict=True)
    )
    return pattern, true


def _by_history(
    histories: Sequence[tuple[int, ...]],
) -> tuple[dict[tuple[int, ...], Size], tuple[int, ...]]:
    """A symbol for each way to vary, and its value."""
    symbols: dict[tuple[int, ...], Size] = {h: (i, 1, 0) for i, h in enumerate(histories)}
    return symbols, tuple(h[-1] for h in histories)


def _by_freedom(
    histories: Sequence[tuple[int, ...]],
) -> tuple[dict[tuple[int, ...], Size], tuple[int, ...]]:
    """Sizes that vary together as multiples of one symbol, and its value."""
    symbols: dict[tuple[int, ...], Size] = {}
    true: list[int] = []
    kept: list[tuple[Any, int, int, int]] = []  # of each symbol: freedom, unit, first value, index
    for history in sorted(histories, key=lambda h: (_unit(h), h[0])):
        freedom, unit = groups.freedom(history), _unit(history)
        for known, least, first, index in kept:
            if known == freedom and unit % least == 0:
                times = unit // least
                symbols[history] = (index, times, history[0] - times * first)
                break
        else:
            kept.append((freedom, unit, history[0], len(true)))
            symbols[history] = (len(true), 1, 0)
            true.append(history[-1])
    return symbols, tuple(true)


def _unit(history: Sequence[int]) -> int:
    return math.gcd(*(n - history[0] for n in history))


def _form(description: Description) -> str:
    """What two calls have in common that differ in sizes only, the same in every process.

    Raises:
        Unbounded: an op of a group reads a part of another's result.
    """
    live = description["live"] if len(description["nodes"]) > 1 else None
    forms = [_op_form(node) for node in description["nodes"]]
    return repr((forms, live, description["scalar_count"]))


def _op_form(node: Any) -> Any:
    operands = [
        None
        if place is None
        else (
            place,
            len(base[0]),
            base[2],
            view and (len(view[0]), view[2]),
            link_form((place, base, view, plan)) if place[0] == "node" else None,
        )
        for place, base, view, plan in node["inputs"]
    ]
    outputs = [(update, base) for _, update, base, _, _ in node["outputs"]]
    made = [(kind, [spec[2] for spec in specs]) for kind, specs in node["outs"]]
    written = [spec[2] for spec in node["written"]]
    numbers = {name for name, _ in varying.numbers_of(node)}
    args = [
        (name, *rest[:-1], None if name in numbers else rest[-1]) for name, *rest in node["args"]
    ]
    row = identity(node["row"]) or repr(node["row"].function)
    facts = (node["name"], row, node["precision"], args, node["scalars"])
    return facts, operands, outputs, made, written


def forget() -> None:
    """Forget all ops, their programs and the sizes that these were called with."""
    with _lock:
        _ops.clear()
