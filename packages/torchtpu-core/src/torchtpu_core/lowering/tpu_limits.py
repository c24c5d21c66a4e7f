# SPDX-License-Identifier: Apache-2.0
"""Operators that XLA's TPU compiler refuses for some dtypes, or at which it ends the process.

Found by compiling the programs of PyTorch's operator database for a v5e with libtpu 0.0.42.1.
What is listed here never reaches that compiler: on a real TPU it runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Operators with one limit.

    Attributes:
        names: without overload, and without the underscore of an in-place form.
        dtype: of an operand with which it is not compiled.
        reason: what a user is told.
    """

    names: frozenset[str]
    dtype: torch.dtype
    reason: str


def _limit(names: str, dtype: torch.dtype, reason: str) -> Limit:
    found = frozenset(f"aten::{name}" for name in names.split())
    return Limit(names=found, dtype=dtype, reason=f"XLA's TPU compiler {reason}")


#: Dtypes of tensors that a TPU cannot hold, with the reason.
REFUSED = {
    torch.complex128: "XLA's TPU compiler ends the process on most operators of complex128, "
    "even on copies; use complex64"
}

LIMITS: tuple[Limit, ...] = (
    _limit(
        "convolution _convolution convolution_backward _trilinear",
        torch.int64,
        "has no convolution and no dot of int64",
    ),
    _limit("_fft_c2c _fft_r2c _fft_c2r", torch.float64, "has no Fourier transform of float64"),
    _limit(
        "linalg_lu linalg_lu_factor_ex _linalg_solve_ex linalg_inv_ex linalg_matrix_exp",
        torch.float64,
        "has no LU factors of float64",
    ),
    _limit("_linalg_svd", torch.float64, "ends the process on singular vectors of float64"),
    _limit(
        "copysign signbit nextafter frexp floor_divide digamma",
        torch.float64,
        "cannot read the sign or the exponent of a float64, which it keeps as two float32",
    ),
    _limit(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
        torch.float64,
        "has no scatter of pooled gradients of float64",
    ),
)


def reason(overload: str, dtypes: Iterable[torch.dtype]) -> str | None:
    """Why an overload is not compiled for a TPU with operands of these dtypes.

    >>> reason("aten::_fft_r2c", [torch.float32]) is None
    True
    """
    given = frozenset(dtypes)
    return next((limit.reason for limit in _limits(overload) if limit.dtype in given), None)


def _limits(overload: str) -> list[Limit]:
    name = overload.partition(".")[0].removesuffix("_")
    return [limit for limit in LIMITS if name in limit.names]
