# SPDX-License-Identifier: Apache-2.0
"""Values that a script checks, and ends if they are wrong: a plan takes them to be right.

``if labels.max() >= self.vocab_size: raise ValueError(...)`` reads a value that a plan does not
have. Which answer raises is seen in the compiled code that asks.
"""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterable
from types import CodeType, FrameType

#: Instructions between the one that reads a value and the jump that follows from it.
_BETWEEN = frozenset(("TO_BOOL", "CACHE", "NOT_TAKEN"))


def harmless(frame: FrameType | None) -> bool | None:
    """The truth value of a value that a frame reads now with which it does not raise at once.

    Returns:
        None if both do, or neither does.
    """
    return None if frame is None else _answer(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _answer(code: CodeType, at: int) -> bool | None:
    instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    # A call of a function in Python is left at one of the caches behind it.
    here = max((n for n, one in enumerate(instructions) if one.offset <= at), default=None)
    if here is None:
        return None
    # An `if` reads at its own jump, a call such as ``x.item()`` before it.
    ahead = (
        instructions[here : here + 1] if _jumps(instructions[here]) else instructions[here + 1 :]
    )
    jump = next((one for one in ahead if one.opname not in _BETWEEN), None)
    if jump is None or not _jumps(jump):
        return None
    place = {one.offset: n for n, one in enumerate(instructions)}
    over = _raises(instructions[place[jump.offset] + 1 :])
    there = _raises(instructions[place[jump.argval] :])
    if over == there:
        return None
    return over if "IF_TRUE" in jump.opname else not over


def _jumps(one: dis.Instruction) -> bool:
    return "JUMP" in one.opname and ("IF_TRUE" in one.opname or "IF_FALSE" in one.opname)


def _raises(instructions: Iterable[dis.Instruction]) -> bool:
    """Whether instructions raise before they go elsewhere."""
    on = itertools.takewhile(lambda one: "JUMP" not in one.opname, instructions)
    ends = (one.opname for one in on if one.opname.startswith(("RAISE", "RETURN")))
    return next(ends, "").startswith("RAISE")
