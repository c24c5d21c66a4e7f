# SPDX-License-Identifier: Apache-2.0
"""Lowerings of LU factorisation and what is made of it: solve, inverse, determinant.

Pivots are int32 and count from 1; ``info`` is int32, 0 for success and else the
1-based position of the first zero pivot. ``det`` and ``slogdet`` are composites:
their autograd formula expects the factors of the transpose where the operand is
contiguous and real, and only torch code sees strides.

Shape letters: ``m`` rows, ``n`` columns, ``k`` = min(m, n), ``...`` batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import checks, dims, shape
from torchtpu_core.lowering.factories import identity
from torchtpu_core.lowering.linalg import (
    INT32,
    LinAlgError,
    conjugate_transpose,
    empty,
    eye,
    no_info,
    solve_triangle,
)
from torchtpu_core.lowering.table import Lowering, composite, native


def _zero_pivot(u: jax.Array) -> jax.Array:
    """int32 `(...)`: 1-based position of the first zero on the diagonal, 0 if there is none."""
    diagonal = jnp.diagonal(u, axis1=-2, axis2=-1)
    if diagonal.shape[-1] == 0:
        return no_info(u)
    zero = diagonal == 0
    first = jnp.argmax(zero, axis=-1).astype(np.int32) + np.int32(1)
    return jnp.where(jnp.any(zero, axis=-1), first, np.int32(0))


def _require_pivot(pivot: bool, name: str) -> None:
    if not pivot:
        raise RuntimeError(f"{name}: LU without pivoting is not implemented on this device")


def _lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Packed factors, 0-based pivots and the permutation."""
    if a.size == 0:
        batch, m, k = a.shape[:-2], a.shape[-2], min(a.shape[-2:])
        rows = jnp.broadcast_to(lax.iota(np.int32, m), (*batch, m))
        return a, dims.zeros((*batch, k), INT32), rows
    return lax.linalg.lu(a)


def _lu_factor_ex(
    A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    _require_pivot(pivot, "linalg.lu_factor")
    packed, pivots, _ = _lu(A)
    info = _zero_pivot(packed)
    if check_errors:
        checks.require(
            info == 0,
            RuntimeError,
            "torch.linalg.lu_factor_ex: U has a zero on its diagonal and using it on lu_solve "
            "would result in a division by zero.",
        )
    return packed, pivots + np.int32(1), info


def _unpacked(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`L` `(..., m, k)` with a unit diagonal and `U` `(..., k, n)`."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    below, above = packed[..., :, :k], packed[..., :k, :]
    zero = dims.zero(packed.dtype)
    lower = jnp.where(shape.triangle(below.shape, -1, upper=False), below, zero)
    upper = jnp.where(shape.triangle(above.shape, 0, upper=True), above, zero)
    return lower + identity(m, k, packed.dtype), upper


def _permutation_matrix(permutation: jax.Array, dtype: np.dtype) -> jax.Array:
    """`P` with ``A = P L U``: column `i` has its one in row ``permutation[i]``."""
    m = permutation.shape[-1]
    rows = dims.iota((m, 1), 0, permutation.dtype)
    return (permutation[..., None, :] == rows).astype(dtype)


def _linalg_lu(A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    _require_pivot(pivot, "linalg.lu")
    packed, _, permutation = _lu(A)
    return _permutation_matrix(permutation, A.dtype), *_unpacked(packed)


def _permutation(pivots: jax.Array, m: int) -> jax.Array:
    """The permutation of `m` rows that 1-based `pivots` `(..., k)` make."""
    if pivots.size == 0:
        return jnp.broadcast_to(lax.iota(np.int32, m), (*pivots.shape[:-1], m))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(np.int32) - np.int32(1), m)


def _lu_unpack(
    LU_data: jax.Array,
    LU_pivots: jax.Array,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    p = lower = upper = empty(LU_data)
    if unpack_pivots:
        permutation = _permutation(LU_pivots, LU_data.shape[-2])
        p = _permutation_matrix(permutation, LU_data.dtype)
    if unpack_data:
        lower, upper = _unpacked(LU_data)
    return p, lower, upper


def _lu_solve(
    LU: jax.Array, pivots: jax.Array, B: jax.Array, *, left: bool = True, adjoint: bool = False
) -> jax.Array:
    if not left:
        # X A = B is A^H X^H = B^H.
        turned = _lu_solve(LU, pivots, conjugate_transpose(B), adjoint=not adjoint)
        return conjugate_transpose(turned)
    batch = np.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    LU = jnp.broadcast_to(LU, (*batch, *LU.shape[-2:]))
    B = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    if B.size == 0:
        return B
    permutation = jnp.broadcast_to(_permutation(pivots, LU.shape[-1]), LU.shape[:-1])
    how = {"transpose_a": adjoint, "conjugate_a": adjoint}
    if adjoint:
        x = solve_triangle(LU, B, lower=False, **how)
        x = solve_triangle(LU, x, lower=True, unit=True, **how)
        return jnp.take_along_axis(x, jnp.argsort(permutation)[..., None], axis=-2)
    x = jnp.take_along_axis(B, permutation[..., None], axis=-2)
    x = solve_triangle(LU, x, lower=True, unit=True)
    return solve_triangle(LU, x, lower=False)


def _solve_ex(
    A: jax.Array, B: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    packed, pivots, info = _lu_factor_ex(A)
    if check_errors:
        checks.require(
            info == 0,
            LinAlgError,
            "torch.linalg.solve_ex: The solver failed because the input matrix is singular.",
        )
    result = _lu_solve(packed, pivots, B[..., None] if vector else B, left=left)
    return (result[..., 0] if vector else result), packed, pivots, info


def _inv_ex(A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    packed, pivots, info = _lu_factor_ex(A)
    if check_errors:
        checks.require(
            info == 0,
            LinAlgError,
            "linalg.inv_ex: The inversion could not be completed because the input matrix is "
            "singular.",
        )
    return _lu_solve(packed, pivots, eye(A, A.shape[-1])), info


def _factored(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """LU and pivots of `A`, or of its transpose where autograd's formulas expect that."""
    turned = A.is_contiguous() and not A.is_complex()
    packed, pivots, _ = torch.linalg.lu_factor_ex(A.mT if turned else A)
    return packed, pivots


def _row_swaps(pivots: torch.Tensor) -> torch.Tensor:
    """`(...)` bool: whether `pivots` make an odd permutation."""
    here = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return ((pivots != here).sum(-1) % 2) == 1


def _det(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, pivots = _factored(A)
    product = packed.diagonal(0, -2, -1).prod(-1)
    return torch.where(_row_swaps(pivots), -product, product), packed, pivots


def _slogdet(
    A: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, pivots = _factored(A)
    diagonal = packed.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1)
    sign = torch.where(_row_swaps(pivots), -sign, sign)
    return sign, diagonal.abs().log().sum(-1), packed, pivots


TABLE: tuple[Lowering, ...] = (
    native("aten::linalg_lu_factor_ex", _lu_factor_ex),
    native("aten::linalg_lu", _linalg_lu),
    native("aten::lu_unpack", _lu_unpack),
    native("aten::linalg_lu_solve", _lu_solve),
    native("aten::_linalg_solve_ex", _solve_ex),
    native("aten::linalg_inv_ex", _inv_ex),
    composite("aten::_linalg_det", _det),
    composite("aten::_linalg_slogdet", _slogdet),
)
