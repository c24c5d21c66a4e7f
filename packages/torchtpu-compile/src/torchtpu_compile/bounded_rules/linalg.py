# SPDX-License-Identifier: Apache-2.0
"""Rules for linear algebra.

A matrix of open size is continued by the identity, ``[[A, 0], [0, 1]]``, which changes
neither the determinant nor the front part of an inverse, a factor or a solution. What
mixes all rows (eigenvalues, singular values) takes matrices of fixed size only; open
batches are filled with identities everywhere, so that no padding is singular. Reflections
(QR) leave zeros beside a matrix as they are, whatever its form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import refuse, require_plain
from torchtpu_compile.padded import Padded, padded_size, same_dim


def _continued(call: Call, x: Padded) -> Padded:
    """`x`, `(*B, N, M)`, with ones on the diagonal of its padding and zeros beside it."""
    ok = call.sizes.valid(x, range(len(x.dims)))
    if ok is None:
        return x
    rows, columns = x.array.shape[-2:]
    eye = jnp.eye(rows, columns, dtype=x.array.dtype)
    return Padded(jnp.where(ok, x.array, eye), x.dims)


def _results(call: Call, x: Padded, values: Any) -> Any:
    """Results whose batches are those of `x`."""
    lead = x.dims[:-2]
    if not isinstance(values, (list, tuple)):
        rest = call.exprs()[len(lead) :]
        return Padded(values, (*lead, *(call.sizes.dim(e) for e in rest)))
    made = []
    for i, value in enumerate(values):
        rest = call.exprs(i)[len(lead) :]
        made.append(Padded(value, (*lead, *(call.sizes.dim(e) for e in rest))))
    return made


def _stated(call: Call, values: Any) -> list[Padded]:
    """Results with the dimensions that the tracer saw."""
    dims = [[call.sizes.dim(e) for e in call.exprs(i)] for i in range(len(values))]
    return [call.result(v, d) for v, d in zip(values, dims, strict=True)]


def _of_one_matrix(call: Call) -> Any:
    x = call.args[0] = call.sizes.compact(call.args[0])
    if x.padded_dims and not same_dim(x.dims[-1], x.dims[-2]):
        raise refuse(call, "takes a matrix of open size that is not square")
    call.args[0] = _continued(call, x)
    return _results(call, x, call.run())


def _exponential(call: Call) -> Padded:
    """Zeros around a matrix are an identity beside its exponential."""
    x = call.sizes.compact(call.args[0])
    if x.padded_dims and not same_dim(x.dims[-1], x.dims[-2]):
        raise refuse(call, "takes a matrix of open size that is not square")
    call.args[0] = call.sizes.filled(x, 0)
    return Padded(call.run(), x.dims)


def _reflected(call: Call) -> Any:
    """Reflections of zeros are identities: they add nothing to the front part."""
    for i, value in enumerate(call.args):
        if isinstance(value, Padded):
            call.args[i] = call.sizes.filled(call.sizes.compact(value), 0)
    values = call.run()
    if isinstance(values, (list, tuple)):
        return _stated(call, values)
    return call.result(values)


def _of_fixed_matrices(call: Call) -> Any:
    x = call.args[0] = call.sizes.compact(call.args[0])
    require_plain(call, x, (len(x.dims) - 2, len(x.dims) - 1))
    call.args[0] = _continued(call, x)
    return _results(call, x, call.run())


def _solve(call: Call, matrix: int = 0) -> Any:
    """A system of equations; `matrix` is its place among the operands, 0 or 1."""
    a, b = (call.sizes.compact(call.args[i]) for i in (matrix, 1 - matrix))
    if a.padded_dims and not same_dim(a.dims[-1], a.dims[-2]):
        raise refuse(call, "takes a matrix of open size that is not square")
    is_vector = len(b.dims) == len(a.dims) - 1  # a right-hand side for each matrix
    lead, other = (a.dims[:-1], b.dims) if is_vector else (a.dims[:-2], b.dims[:-2])
    if len(lead) != len(other) or not all(map(same_dim, lead, other)):
        raise refuse(call, "has batches that differ")
    call.args[matrix], call.args[1 - matrix] = _continued(call, a), call.sizes.filled(b, 0)
    return _results(call, a, call.run())


def _solve_for(call: Call) -> Any:
    # the right-hand side comes first, as in aten::cholesky_solve(self, A)
    return _solve(call, matrix=1)


def _solve_factored(call: Call) -> Padded:
    # aten::linalg_lu_solve(LU, pivots, B, *, left, adjoint)
    factors, pivots, b = (call.sizes.compact(x) for x in call.args[:3])
    if factors.padded_dims and not same_dim(factors.dims[-1], factors.dims[-2]):
        raise refuse(call, "takes factors of open size that are not square")
    lead = [x.dims[:-2] for x in (factors, b)] + [pivots.dims[:-1]]
    if any(len(other) != len(lead[0]) for other in lead) or not all(
        same_dim(x, y) for other in lead for x, y in zip(lead[0], other, strict=True)
    ):
        raise refuse(call, "has batches that differ")
    call.args[:3] = [_continued(call, factors), _kept(call, pivots), call.sizes.filled(b, 0)]
    return Padded(call.run(), b.dims)


def _kept(call: Call, pivots: Padded) -> Padded:
    """`pivots` by which each row of the padding stays where it is."""
    ok = call.sizes.valid(pivots, range(len(pivots.dims)))
    if ok is None:
        return pivots
    own = jnp.arange(1, pivots.array.shape[-1] + 1, dtype=pivots.array.dtype)
    return Padded(jnp.where(ok, pivots.array, own), pivots.dims)


def _unpack(call: Call) -> list[Padded]:
    # aten::lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots) -> (P, L, U)
    factors, pivots = (call.sizes.compact(x) for x in call.args[:2])
    if factors.padded_dims and not same_dim(factors.dims[-1], factors.dims[-2]):
        raise refuse(call, "takes factors of open size that are not square")
    call.args[:2] = [_continued(call, factors), _kept(call, pivots)]
    return _stated(call, call.run())


def _eye(call: Call) -> Padded:
    dims = tuple(call.sizes.dim(e) for e in call.exprs())
    rows, columns = (padded_size(d) for d in dims)
    return Padded(jnp.eye(rows, columns), dims)


def _diag_embed(call: Call) -> Padded:
    x = call.sizes.compact(call.args[0])
    rank = len(x.dims) + 1
    last = call.arg("dim1") % rank == rank - 2 and call.arg("dim2") % rank == rank - 1
    if call.arg("offset") != 0 or not last:
        raise refuse(call, "puts a tensor of open size on another diagonal than the main one")
    here = jnp.eye(x.array.shape[-1], dtype=bool)
    values = jnp.where(here, x.array[..., None], jnp.zeros((), x.array.dtype))
    return Padded(values, (*x.dims, x.dims[-1]))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "aten::_linalg_det",
            "aten::_linalg_slogdet",
            "aten::linalg_inv_ex",
            "aten::linalg_cholesky_ex",
            "aten::cholesky",
            "aten::cholesky_inverse",
            "aten::linalg_lu_factor_ex",
            "aten::linalg_lu",
        ),
        _of_one_matrix,
    ),
    **dict.fromkeys(("aten::_linalg_eigh", "aten::_linalg_svd"), _of_fixed_matrices),
    **dict.fromkeys(("aten::linalg_qr", "aten::linalg_householder_product"), _reflected),
    "aten::lu_unpack": _unpack,
    **dict.fromkeys(("aten::eye", "aten::eye.m"), _eye),
    **dict.fromkeys(("aten::_linalg_solve_ex", "aten::linalg_solve_triangular"), _solve),
    **dict.fromkeys(
        ("aten::cholesky_solve", "aten::_cholesky_solve_helper", "aten::triangular_solve"),
        _solve_for,
    ),
    "aten::linalg_matrix_exp": _exponential,
    "aten::linalg_lu_solve": _solve_factored,
    "aten::diag_embed": _diag_embed,
}
