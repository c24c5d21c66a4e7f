# SPDX-License-Identifier: Apache-2.0
"""Ops of Fused Eager whose sizes vary, as few programs.

An op that a script calls with ever new sizes, such as attention over a cache that grows,
runs at padded sizes by the rules of compiled graphs. Nothing else changes: operands are
padded and results cut back in host memory, so that values, views and keys are those of
programs of true sizes. A call that does not fit gets a program of its own.

Legend: the *form* of a call is all that its program depends on but sizes; a *pattern* says
which sizes are open, and which of them are always equal.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchtpu_core.runtime import clients, varying
from torchtpu_core.runtime.programs import Program
from torchtpu_core.runtime.trace_lowering import Description

from torchtpu_compile.op_graph import FormError, Pattern
from torchtpu_compile.open_op import OpenOp
from torchtpu_compile.padded_call import PaddedCall
from torchtpu_compile.symbols import Unbounded

#: Why ops of varying sizes have a program per size, and how often one was refused for it.
reasons: Counter[str] = Counter()

_lock = threading.Lock()
#: By form and pattern; an error: it cannot run at padded sizes.
_ops: dict[Any, OpenOp | Unbounded] = {}


def program(description: Description, sizes_seen: Sequence[Any]) -> Program | None:
    """The program of an op of open sizes, or None if it needs one of its true sizes.

    Args:
        description: a trace of one op.
        sizes_seen: of its site, the present ones last.
    """
    (node,) = description["nodes"]
    if clients.client().platform != "cpu":
        return None
    pattern, true = _pattern(sizes_seen)
    if not true:
        return None
    key = _form(description), pattern
    op = _ops.get(key)
    if op is None:
        with _lock:
            op = _ops.get(key) or _ops.setdefault(key, _made(description, pattern))
    if isinstance(op, Unbounded):
        return None
    try:
        op.graph.require(description, true)
        call = PaddedCall(op, description, true)
        known = op.count
        executable = call.executable()
    except Exception as error:  # at its true sizes the op works, or says why it does not
        reasons[_reason(description, error)] += 1
        if not isinstance(error, FormError):
            _ops[key] = Unbounded()
        return None
    return Program(
        call=call,
        positions=[output for _, output in description["live"]],
        checks=executable.checks,
        device_time_ps=executable.compiled.device_time_ps,
        new_bytes=executable.new_bytes + sum(_bytes(output[0]) for output in node["outputs"]),
        compiled=op.count > known,
    )


def _made(description: Description, pattern: Pattern) -> OpenOp | Unbounded:
    try:
        return OpenOp(description, pattern)
    except Exception as error:
        reasons[_reason(description, error)] += 1
        return error if isinstance(error, Unbounded) else Unbounded(str(error))


def _reason(description: Description, error: Exception) -> str:
    text = str(error) if isinstance(error, Unbounded) else f"{type(error).__name__}: {error}"
    return f"{description['nodes'][0]['name']} in eager mode: {text}"


def _bytes(geometry: Sequence[Any]) -> int:
    sizes, _, dtype = geometry
    return math.prod(sizes) * int(dtype.itemsize)


def _pattern(sizes_seen: Sequence[Any]) -> tuple[Pattern, tuple[int, ...]]:
    """What varies, and the present value of each symbol."""
    histories: dict[tuple[int, ...], int] = {}
    true: list[int] = []

    def part(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        result = []
        for history in zip(*parts, strict=True):
            if len(set(history)) == 1:
                result.append(history[0])
                continue
            if history not in histories:
                histories[history] = len(histories)
                true.append(history[-1])
            result.append(-1 - histories[history])
        return tuple(result)

    pattern = tuple(
        (part([view for view, _ in operand]), part([base for _, base in operand]))
        for operand in zip(*sizes_seen, strict=True)
    )
    return pattern, tuple(true)


def _form(description: Description) -> str:
    """What two calls have in common that differ in sizes only."""
    (node,) = description["nodes"]
    operands = [
        None if place is None else (place, len(base[0]), base[2], view and (len(view[0]), view[2]))
        for place, base, view, _ in node["inputs"]
    ]
    outputs = [(update, base) for _, update, base, _, _ in node["outputs"]]
    made = [(kind, [spec[2] for spec in specs]) for kind, specs in node["outs"]]
    written = [spec[2] for spec in node["written"]]
    numbers = {name for name, _ in varying.numbers_of(node)}
    args = [
        (name, *rest[:-1], None if name in numbers else rest[-1]) for name, *rest in node["args"]
    ]
    facts = (node["name"], id(node["row"]), node["precision"], args, node["scalars"])
    return repr((facts, operands, outputs, made, written, description["scalar_count"]))
