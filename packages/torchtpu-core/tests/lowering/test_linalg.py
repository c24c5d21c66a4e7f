# SPDX-License-Identifier: Apache-2.0
"""Linear algebra gives CPU PyTorch's values, or factors that multiply back to the operand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering import linalg, linalg_lu
from torchtpu_core.testing.lowering import check, lower

TABLE = linalg.TABLE + linalg_lu.TABLE
G = torch.Generator().manual_seed(0)
A = torch.randn(2, 4, 4, generator=G, dtype=torch.float64)
TALL = torch.randn(2, 5, 3, generator=G, dtype=torch.float64)
WIDE = TALL.mT.contiguous()
COMPLEX = torch.complex(A, A.flip(0))
POSITIVE = A @ A.mT + torch.eye(4)
HERMITIAN = COMPLEX @ COMPLEX.mH + torch.eye(4)
B = torch.randn(2, 4, 3, generator=G, dtype=torch.float64)
L = torch.linalg.cholesky(POSITIVE)
TAU = torch.randn(2, 3, generator=G, dtype=torch.float64)
LU, PIVOTS = torch.linalg.lu_factor(A)
CLU, CPIVOTS = torch.linalg.lu_factor(COMPLEX)
CB = torch.complex(B, B)
NONE = torch.zeros(0, 0)

CASES: list[tuple[Any, ...]] = [
    ("linalg_cholesky_ex", POSITIVE, {}),
    ("linalg_cholesky_ex", HERMITIAN, {"upper": True}),
    ("linalg_cholesky_ex", NONE, {}),
    ("cholesky", POSITIVE.float(), {}),
    ("cholesky_solve", B, L, {}),
    ("cholesky_solve", B, L.mT.contiguous(), True, {}),
    ("_cholesky_solve_helper", CB, torch.linalg.cholesky(HERMITIAN), False, {}),
    ("cholesky_inverse", L, {}),
    ("linalg_qr", TALL, {}),
    ("linalg_qr", TALL, "complete", {}),
    ("linalg_qr", WIDE, "r", {}),
    ("linalg_qr", torch.zeros(3, 0), "complete", {}),
    ("linalg_householder_product", TALL, TAU, {}),
    ("ormqr", TALL, TAU, torch.ones(2, 5, 2, dtype=torch.float64), True, True, {}),
    ("linalg_lu_factor_ex", A, {}),
    ("linalg_lu_factor_ex", TALL, {}),
    ("linalg_lu_factor_ex", torch.diag(torch.tensor([2.0, 0.0, 3.0])), {}),
    ("linalg_lu", WIDE, {}),
    ("linalg_lu", COMPLEX, {}),
    ("lu_unpack", LU, PIVOTS, {}),
    ("lu_unpack", LU, PIVOTS, False, True, {}),
    ("linalg_lu_solve", LU, PIVOTS, B, {}),
    ("linalg_lu_solve", CLU, CPIVOTS, CB, {"adjoint": True}),
    ("linalg_lu_solve", CLU, CPIVOTS, CB.mT, {"left": False}),
    ("linalg_lu_solve", LU, PIVOTS, B.mT, {"left": False, "adjoint": True}),
    ("_linalg_solve_ex", A, B, {}),
    ("_linalg_solve_ex", COMPLEX.mT, CB.mT, {"left": False}),
    ("_linalg_solve_ex", A, B[..., 0], {}),
    ("_linalg_solve_ex", A[0], B[0, :, 0], {}),
    ("linalg_inv_ex", A, {}),
    ("linalg_inv_ex", NONE, {}),
    ("linalg_solve_triangular", A.tril(), B, {"upper": False}),
    ("linalg_solve_triangular", A, B.mT, {"upper": True, "left": False, "unitriangular": True}),
    ("linalg_solve_triangular", A[0].triu(), B, {"upper": True}),
    ("triangular_solve", B, A, True, True, {}),
    ("linalg_matrix_exp", A / 4, {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_linalg_gives_cpu_values(case: tuple[Any, ...]) -> None:
    check(f"aten::{case[0]}", *case[1:-1], table=TABLE, **case[-1])


def _run(name: str, *args: Any, **keywords: Any) -> list[torch.Tensor]:
    row = next(r for r in TABLE if r.overload == f"aten::{name}")
    return lower(row, args, keywords)


@pytest.mark.parametrize("x", [TALL, WIDE, COMPLEX], ids=["tall", "wide", "complex"])
@pytest.mark.parametrize("full", [False, True])
def test_svd_factors_multiply_back(x: torch.Tensor, full: bool) -> None:
    u, s, vh = _run("_linalg_svd", x, full)
    k = s.shape[-1]
    rebuilt = u[..., :k] * s.unsqueeze(-2).to(u.dtype) @ vh[..., :k, :]
    torch.testing.assert_close(rebuilt, x)
    torch.testing.assert_close(s, torch.linalg.svdvals(x))
    expected = torch.ops.aten._linalg_svd(x, full)
    assert [t.shape for t in (u, s, vh)] == [t.shape for t in expected]


def test_svd_without_vectors_gives_cpu_values() -> None:
    check("aten::_linalg_svd", TALL, False, False, table=TABLE)


@pytest.mark.parametrize("side", ["L", "U"])
@pytest.mark.parametrize("x", [A, COMPLEX], ids=["real", "complex"])
def test_eigh_reads_one_triangle_and_multiplies_back(x: torch.Tensor, side: str) -> None:
    values, vectors = _run("_linalg_eigh", x, side)
    strict = x.tril(-1) if side == "L" else x.triu(1)
    diagonal = torch.diag_embed(x.diagonal(0, -2, -1).real).to(x.dtype)
    rebuilt = vectors * values.unsqueeze(-2).to(x.dtype) @ vectors.mH
    torch.testing.assert_close(rebuilt, strict + strict.mH + diagonal)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(x, side))


def test_cholesky_of_indefinite_matrix_reports_the_minor_as_cpu() -> None:
    bad = torch.stack([POSITIVE[0], POSITIVE[0] - 100 * torch.diag(torch.tensor([0, 0, 1, 0]))])
    info = _run("linalg_cholesky_ex", bad)[1]
    assert info.tolist() == torch.linalg.cholesky_ex(bad).info.tolist() == [0, 3]
    with pytest.raises(torch.linalg.LinAlgError):
        _run("linalg_cholesky_ex", bad, check_errors=True)


def test_inverse_of_singular_matrix_reports_the_pivot_as_cpu() -> None:
    singular = torch.diag(torch.tensor([1.0, 0.0, 2.0]))
    info = _run("linalg_inv_ex", singular)[1]
    assert info.tolist() == torch.linalg.inv_ex(singular).info.tolist() == 2
    with pytest.raises(torch.linalg.LinAlgError):
        _run("linalg_inv_ex", singular, check_errors=True)


MATRICES = {"contiguous": A, "transposed": A.mT, "complex": COMPLEX}


@pytest.mark.parametrize("x", MATRICES.values(), ids=MATRICES.keys())
def test_determinants_give_cpu_values_and_factors(x: torch.Tensor) -> None:
    torch.testing.assert_close(linalg_lu._det(x), tuple(torch.ops.aten._linalg_det(x)))
    torch.testing.assert_close(linalg_lu._slogdet(x), tuple(torch.ops.aten._linalg_slogdet(x)))


def test_singular_values_of_nan_are_refused_as_on_cpu() -> None:
    x = torch.tensor([[float("nan"), 1.0], [2.0, 3.0]])
    for device in ("cpu", "tpu"):
        with pytest.raises(torch.linalg.LinAlgError, match="contained non-finite values"):
            torch.linalg.svdvals(x.to(device)).cpu()
