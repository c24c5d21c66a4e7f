# SPDX-License-Identifier: Apache-2.0
"""Run-time scalars that are equal in every call become one operand of a program.

An optimizer compiled with its step brings the step count of each parameter, and the counts are the
same number. As operands of their own each costs the program two powers, a square root and what is
computed from them; as one operand XLA computes them once, which halves the time to compile and
spares kernels of one element in each run. The values are the host's, so looking at them waits for
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Number = bool | int | float

#: Fewer scalars are not worth a program of their own when they differ later.
_WORTH = 8


class EqualScalars:
    """Which scalars of a program's calls are equal, as the first call has it.

    Once a call has it otherwise, no scalars share an operand any more: there are at most two
    programs.

    Args:
        dtypes: of the 0-d tensors that the scalars come from.

    Attributes:
        operands: for each scalar which operand carries it; None if each has its own.
    """

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        self._dtypes = dtypes
        self._is_open = len(dtypes) >= _WORTH
        self._firsts: list[int] = []
        self.operands: tuple[int, ...] | None = None

    def operands_of(self, scalars: Sequence[Number]) -> Sequence[Number]:
        """The operands that carry the scalars of a call, by `operands` as it is then."""
        if self._is_open:
            self._is_open = False
            self._look(scalars)
        if self.operands is None:
            return scalars
        found = [scalars[i] for i in self._firsts]
        if all(_is_same(s, found[i]) for s, i in zip(scalars, self.operands, strict=True)):
            return found
        self.operands = None
        return scalars

    def _look(self, scalars: Sequence[Number]) -> None:
        known: dict[Any, int] = {}
        operands = []
        for i, (scalar, dtype) in enumerate(zip(scalars, self._dtypes, strict=True)):
            key = (dtype, scalar, math.copysign(1.0, scalar))
            if key not in known:
                known[key] = len(known)
                self._firsts.append(i)
            operands.append(known[key])
        if len(known) <= len(scalars) // 2:
            self.operands = tuple(operands)


def _is_same(a: Number, b: Number) -> bool:
    """Equality that tells zeros of different sign apart."""
    return a == b and (a != 0 or math.copysign(1.0, a) == math.copysign(1.0, b))


def spread(function: Callable[..., Any], operands: Sequence[int] | None) -> Callable[..., Any]:
    """A function of all scalars as a function of the operands that carry them."""
    if operands is None:
        return function

    def called(arrays: Any, *scalars: Any, **kwargs: Any) -> Any:
        return function(arrays, *[scalars[i] for i in operands], **kwargs)

    return called
