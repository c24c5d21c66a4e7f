# SPDX-License-Identifier: Apache-2.0
"""Operators that XLA's TPU compiler refuses for some dtypes, or at which it ends the process.

Found by compiling the programs of PyTorch's operator database for a v5e with libtpu 0.0.42.1.
What is listed here never reaches that compiler: on a real TPU it runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

_DOUBLE = frozenset({torch.float64, torch.complex128})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Operators with one limit.

    Attributes:
        names: without overload, and without the underscore of an in-place form.
        dtypes: of an operand with which it is not compiled.
        reason: what a user is told.
    """

    names: frozenset[str]
    dtypes: frozenset[torch.dtype]
    reason: str


LIMITS: tuple[Limit, ...] = ()


def reason(overload: str, dtypes: Iterable[torch.dtype]) -> str | None:
    """Why an overload is not compiled for a TPU with operands of these dtypes.

    >>> reason("aten::_fft_r2c", [torch.float32]) is None
    True
    """
    given = frozenset(dtypes)
    return next((limit.reason for limit in _limits(overload) if given & limit.dtypes), None)


def reasons(overload: str) -> list[str]:
    """Why it is not compiled with some dtypes; nothing if it always is."""
    return [limit.reason for limit in _limits(overload)]


def _limits(overload: str) -> list[Limit]:
    name = overload.partition(".")[0].removesuffix("_")
    return [limit for limit in LIMITS if name in limit.names]
