# SPDX-License-Identifier: Apache-2.0
"""Lowerings of dense linear algebra on ``jax.lax.linalg``; LU and solve in ``linalg_lu.py``.

Matrices are the last two dimensions, all before them is batch. ``info`` is int32, 0
for success and else the 1-based position LAPACK would report.

Shape letters: ``m`` rows, ``n`` columns, ``...`` batch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.scipy.linalg import expm

from torchtpu_core.lowering import checks, dims, dtypes, mxu, shape
from torchtpu_core.lowering.factories import identity
from torchtpu_core.lowering.table import Lowering, host, native

LinAlgError = torch.linalg.LinAlgError
INT32 = np.dtype(np.int32)


def conjugate_transpose(x: jax.Array) -> jax.Array:
    """The conjugate transpose of every matrix."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def no_info(x: jax.Array) -> jax.Array:
    return dims.zeros(x.shape[:-2], INT32)


def empty(x: jax.Array) -> jax.Array:
    """The `(0,)` tensor PyTorch returns in place of a factor nobody asked for."""
    return dims.zeros((0,), x.dtype)


def eye(x: jax.Array, side: int) -> jax.Array:
    return jnp.broadcast_to(identity(side, side, x.dtype), (*x.shape[:-2], side, side))


def solve_triangle(
    a: jax.Array, b: jax.Array, *, lower: bool, left: bool = True, unit: bool = False, **how: bool
) -> jax.Array:
    """``a x = b`` (or ``x a = b``) with batch dimensions broadcast."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if a.size == 0 or b.size == 0:
        return jnp.zeros_like(b)
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, unit_diagonal=unit, **how)


def _first_bad_minor(a: jax.Array) -> jax.Array:
    """int32 `(...)`: order of the first leading minor that is not positive, 0 if there is none."""
    n = a.shape[-1]

    def eliminate(step: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rest, info = state
        column = lax.dynamic_slice_in_dim(rest, step, 1, axis=-1)
        pivot = jnp.real(lax.dynamic_slice_in_dim(column, step, 1, axis=-2))[..., 0, 0]
        good = pivot > 0
        info = jnp.where((info == 0) & ~good, jnp.int32(step + 1), info)
        safe = jnp.where(good, pivot, jnp.ones_like(pivot)).astype(a.dtype)
        return rest - column * conjugate_transpose(column) / safe[..., None, None], info

    return lax.fori_loop(0, n, eliminate, (a, no_info(a)))[1]


def _cholesky_ex(
    self: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    if self.size == 0:
        return self, no_info(self)
    lower = conjugate_transpose(self) if upper else self
    factor = lax.linalg.cholesky(lower, symmetrize_input=False)
    failed = jnp.any(jnp.isnan(factor), axis=(-2, -1))
    hermitian = _mirrored(lower)
    info = lax.cond(jnp.any(failed), _first_bad_minor, no_info, hermitian)
    info = jnp.where(failed & (info == 0), jnp.int32(1), info)
    if check_errors:
        checks.require(
            info == 0,
            LinAlgError,
            "linalg.cholesky_ex: The factorization could not be completed because the input "
            "is not positive-definite.",
        )
    return (conjugate_transpose(factor) if upper else factor), info


def _mirrored(lower: jax.Array) -> jax.Array:
    """The Hermitian matrix whose lower triangle is that of `lower`."""
    strict = shape.triangle(lower.shape, -1, upper=False)
    return jnp.where(
        strict, lower, jnp.where(strict.swapaxes(-1, -2), conjugate_transpose(lower), lower)
    )


def _cholesky(self: jax.Array, upper: bool = False) -> jax.Array:
    factor, info = _cholesky_ex(self, upper=upper)
    checks.require(
        info == 0,
        LinAlgError,
        "cholesky: The factorization could not be completed because the input is not "
        "positive-definite.",
    )
    return factor


def _cholesky_solve(self: jax.Array, A: jax.Array, upper: bool = False) -> jax.Array:
    # A = L L^H, or U^H U when upper: in both cases two triangular solves.
    first = solve_triangle(A, self, lower=not upper, transpose_a=upper, conjugate_a=upper)
    return solve_triangle(A, first, lower=not upper, transpose_a=not upper, conjugate_a=not upper)


def _cholesky_inverse(self: jax.Array, upper: bool = False) -> jax.Array:
    return _cholesky_solve(eye(self, self.shape[-1]), self, upper)


def _qr(A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    m, n = A.shape[-2:]
    if A.size == 0:
        width = m if mode == "complete" else min(m, n)
        q = jnp.broadcast_to(identity(m, width, A.dtype), (*A.shape[:-2], m, width))
        r = dims.zeros((*A.shape[:-2], width, n), A.dtype)
    else:
        q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return (empty(A) if mode == "r" else q), r


def _householder_product(input: jax.Array, tau: jax.Array) -> jax.Array:
    if input.size == 0 or tau.shape[-1] == 0:
        m, n = input.shape[-2:]
        return jnp.broadcast_to(identity(m, n, input.dtype), input.shape)
    return lax.linalg.householder_product(input, tau)


def _ormqr(
    self: jax.Array,
    input2: jax.Array,
    input3: jax.Array,
    left: bool = True,
    transpose: bool = False,
) -> jax.Array:
    if input3.size == 0 or input2.shape[-1] == 0:
        return input3
    return lax.linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


def _svd(
    A: jax.Array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    m, n = A.shape[-2:]
    if A.size == 0:
        real = A.dtype.type(0).real.dtype
        values = dims.zeros((*A.shape[:-2], min(m, n)), real)
        if not compute_uv:
            return empty(A), values, empty(A)
        wide = (m, n) if full_matrices else (min(m, n),) * 2
        u = jnp.broadcast_to(identity(m, wide[0], A.dtype), (*A.shape[:-2], m, wide[0]))
        return (
            u,
            values,
            jnp.broadcast_to(identity(wide[1], n, A.dtype), (*A.shape[:-2], wide[1], n)),
        )
    checks.require(
        ~jnp.isnan(A),
        LinAlgError,
        "linalg.svd: The algorithm failed to converge because the input matrix contained "
        "non-finite values.",
    )
    if not compute_uv:
        return empty(A), lax.linalg.svd(A, compute_uv=False), empty(A)
    factors = _exported_svd if mxu.lowers_for("tpu") else lax.linalg.svd
    u, s, vh = factors(A, full_matrices=full_matrices)
    return u, s, vh


def _exported_svd(A: jax.Array, *, full_matrices: bool) -> Any:
    """JAX's SVD for a TPU, lowered apart with 32-bit types.

    With 64-bit types it multiplies by a table of int64, at which the TPU's compiler (libtpu
    0.0.42.1) ends the process.
    """
    with jax.enable_x64(False):
        function = jax.jit(partial(lax.linalg.svd, full_matrices=full_matrices))
        struct = jax.ShapeDtypeStruct(A.shape, A.dtype)
        exported = jax.export.export(function, platforms=["tpu"])(struct)
    return exported.call(A)


def _eigh(A: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    if A.size == 0:
        real = A.dtype.type(0).real.dtype
        return dims.zeros(A.shape[:-1], real), (A if compute_v else empty(A))
    vectors, values = lax.linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, (vectors if compute_v else empty(A))


def _linalg_solve_triangular(
    self: jax.Array,
    B: jax.Array,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> jax.Array:
    return solve_triangle(self, B, lower=not upper, left=left, unit=unitriangular)


def _triangular_solve(
    self: jax.Array,
    A: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[jax.Array, jax.Array]:
    solution = solve_triangle(A, self, lower=not upper, unit=unitriangular, transpose_a=transpose)
    return solution, jnp.broadcast_to(A, (*solution.shape[:-2], *A.shape[-2:]))


def _matrix_exp(self: jax.Array) -> jax.Array:
    if self.size == 0:
        return self
    compute = dtypes.opmath(self.dtype)
    return expm(self.astype(compute)).astype(self.dtype)


_UNSYMMETRIC = "XLA has no eigensolver for unsymmetric matrices on TPU"
_PIVOTED = "XLA has no symmetric indefinite (Bunch-Kaufman) factorisation"

_NATIVE: tuple[tuple[str, Any], ...] = (
    ("linalg_cholesky_ex", _cholesky_ex),
    ("cholesky", _cholesky),
    ("cholesky_solve", _cholesky_solve),
    ("_cholesky_solve_helper", _cholesky_solve),
    ("cholesky_inverse", _cholesky_inverse),
    ("linalg_qr", _qr),
    ("linalg_householder_product", _householder_product),
    ("ormqr", _ormqr),
    ("_linalg_svd", _svd),
    ("_linalg_eigh", _eigh),
    ("linalg_solve_triangular", _linalg_solve_triangular),
    ("triangular_solve", _triangular_solve),
    ("linalg_matrix_exp", _matrix_exp),
)

TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::{name}", function) for name, function in _NATIVE),
    host("aten::linalg_eig", _UNSYMMETRIC),
    host("aten::_linalg_eigvals", _UNSYMMETRIC),
    host("aten::linalg_ldl_factor_ex", _PIVOTED),
    host("aten::linalg_ldl_solve", _PIVOTED),
    host("aten::linalg_lstsq", "LAPACK's four least-squares drivers are not in XLA"),
    host("aten::geqrf", "XLA exposes the product of the reflectors, not the packed factor"),
)
