# SPDX-License-Identifier: Apache-2.0
"""Kinds of checks that refuse a call by its operands' dtypes, as CPU's kernels do.

The table of calls is `torchtpu_core.lowering.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtpu_core.lowering.refused_shapes import dtype_name

Arguments = Mapping[str, Any]
Check = Callable[[Arguments], None]


def same_dtype(first: str, others: tuple[str, ...], message: str) -> Check:
    """`message` is formatted with the dtypes of `first` and of the operand that differs."""

    def check(arguments: Arguments) -> None:
        expected = arguments[first].dtype
        for other in others:
            operand = arguments[other]
            if isinstance(operand, torch.Tensor) and operand.dtype != expected:
                raise RuntimeError(message.format(dtype_name(expected), dtype_name(operand.dtype)))

    return check


def refused(
    operand: str,
    is_refused: Callable[[torch.dtype], bool],
    message: str,
    error: type[Exception] = RuntimeError,
) -> Check:
    """`message` is formatted with the operand's dtype."""

    def check(arguments: Arguments) -> None:
        dtype = arguments[operand].dtype
        if is_refused(dtype):
            raise error(message.format(dtype_name(dtype)))

    return check


def no_kernel(operand: str, is_refused: Callable[[torch.dtype], bool], kernel: str) -> Check:
    """CPU's error for a dtype that has no meaning for the op."""
    message = f"\"{kernel}\" not implemented for '{{}}'"
    return refused(operand, is_refused, message, NotImplementedError)


def is_complex(dtype: torch.dtype) -> bool:
    """Of complex numbers."""
    return dtype.is_complex


def is_bool(dtype: torch.dtype) -> bool:
    """Of truth values."""
    return dtype == torch.bool


def not_floating(dtype: torch.dtype) -> bool:
    """Neither of real nor of complex floating point numbers."""
    return not dtype.is_floating_point and not dtype.is_complex


def no_pixel(dtype: torch.dtype) -> bool:
    """Neither of floating point numbers nor of bytes."""
    return not_floating(dtype) and dtype != torch.uint8


def not_real(dtype: torch.dtype) -> bool:
    """Not of real floating point numbers."""
    return not dtype.is_floating_point


def not_whole(dtype: torch.dtype) -> bool:
    """Not of integers or truth values."""
    return dtype.is_floating_point or dtype.is_complex


def not_in(*allowed: torch.dtype) -> Callable[[torch.dtype], bool]:
    """None of the allowed ones."""
    return lambda dtype: dtype not in allowed


def is_half(dtype: torch.dtype) -> bool:
    """Of 16-bit floating point numbers."""
    return dtype in (torch.float16, torch.bfloat16)


def all_of(*checks: Check) -> Check:
    """The checks one after the other."""

    def check(arguments: Arguments) -> None:
        for each in checks:
            each(arguments)

    return check


#: Means of neighbours, which are no integers: what is refused, and CPU's kernel.
_INTERPOLATIONS = {
    "upsample_linear1d": (not_floating, "compute_indices_weights_linear"),
    "upsample_trilinear3d": (not_floating, "compute_indices_weights_linear"),
    "upsample_bilinear2d": (no_pixel, "compute_indices_weights_linear"),
    "upsample_bicubic2d": (no_pixel, "compute_indices_weights_cubic"),
    "_upsample_bilinear2d_aa": (no_pixel, "compute_index_ranges_weights"),
    "_upsample_bicubic2d_aa": (no_pixel, "compute_index_ranges_weights"),
}

#: Decompositions of matrices, which neither CPU nor XLA has in half precision: the operand and
#: CPU's kernel.
_DECOMPOSED = {
    "_linalg_det": ("A", "lu_cpu"),
    "_linalg_eigh": ("A", "linalg_eigh_cpu"),
    "_linalg_solve_ex": ("A", "lu_cpu"),
    "_linalg_svd": ("A", "linalg_svd_cpu"),
    "geqrf": ("self", "geqrf_cpu"),
    "linalg_cholesky_ex": ("self", "cholesky_cpu"),
    "linalg_householder_product": ("input", "orgqr_cpu"),
    "linalg_lu": ("A", "lu_cpu"),
    "linalg_lu_factor_ex": ("A", "lu_cpu"),
    "linalg_qr": ("A", "geqrf_cpu"),
}

#: Checks of ops for which CPU has kernels of fewer dtypes, by their names.
NO_KERNELS: dict[str, Check] = {
    **{
        f"aten::{op}": no_kernel("self", is_refused, kernel)
        for op, (is_refused, kernel) in _INTERPOLATIONS.items()
    },
    **{
        f"aten::{op}": no_kernel(operand, is_half, kernel)
        for op, (operand, kernel) in _DECOMPOSED.items()
    },
}
