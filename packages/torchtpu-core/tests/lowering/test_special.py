# SPDX-License-Identifier: Apache-2.0
"""Special functions against CPU PyTorch, and against mpmath where PyTorch is the less exact."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torchtpu_core.lowering import bessel, polynomials, special
from torchtpu_core.testing.lowering import check, lower

TABLE = (*special.TABLE, *bessel.TABLE, *polynomials.TABLE)
ROWS = {row.overload: row for row in TABLE}

INF, NAN = float("inf"), float("nan")
SPREAD = torch.tensor(
    [-30.0, -4.2, -1.0, -0.5, -0.0, 0.0, 0.1, 0.5, 0.999, 1.0, 2.5, 7.0, 30.0, NAN]
)
UNIT = torch.tensor([-1.0, -0.7, 0.0, 0.01, 0.5, 0.99, 1.0, 1.5])

EVERYWHERE = [
    "erf", "erfc", "lgamma", "digamma", "i0", "special_i0e", "special_i1", "special_i1e",
    "special_entr", "special_log_ndtr",
]  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions_equal_cpu(name: str, dtype: torch.dtype) -> None:
    check(f"aten::{name}", SPREAD.to(dtype), table=TABLE)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_special_functions_of_integers_equal_cpu(name: str) -> None:
    check(f"aten::{name}", torch.tensor([0, 1, 2, 5]), table=TABLE)


@pytest.mark.parametrize("name", ["erfinv", "special_ndtri"])
def test_inverse_functions_equal_cpu(name: str) -> None:
    check(f"aten::{name}", UNIT, table=TABLE)


def test_erfcx_equals_cpu() -> None:
    check("aten::special_erfcx", torch.linspace(-3, 40, 50, dtype=torch.float64), table=TABLE)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma_equals_cpu(n: int) -> None:
    check("aten::polygamma", n, torch.tensor([0.3, 1.0, 2.5, 10.0, -0.5, -8.25]), table=TABLE)


def test_zeta_poles_and_negative_arguments_equal_cpu() -> None:
    x = torch.arange(-2, 6, dtype=torch.float64).repeat(8)
    q = torch.tensor([-3.0, -2.5, -0.25, 0.0, 0.5, 1.0, 4.0, 20.0]).double().repeat_interleave(8)
    check("aten::special_zeta", x, q, table=TABLE)


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_equals_cpu(name: str) -> None:
    a, x = torch.linspace(0.1, 10, 5).reshape(5, 1), torch.linspace(0, 20, 6)
    check(f"aten::{name}", a, x, table=TABLE)


@pytest.mark.parametrize("p", [1, 3])
def test_mvlgamma_equals_cpu(p: int) -> None:
    check("aten::mvlgamma", torch.tensor([2.5, 4.0, 30.0]), p, table=TABLE)


ORACLES = {
    "special_bessel_j0": lambda x: mpmath.besselj(0, x),
    "special_bessel_j1": lambda x: mpmath.besselj(1, x),
    "special_bessel_y0": lambda x: mpmath.bessely(0, x),
    "special_bessel_y1": lambda x: mpmath.bessely(1, x),
    "special_modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "special_modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "special_airy_ai": lambda x: mpmath.airyai(x),
}


@pytest.mark.parametrize("name", ORACLES)
def test_bessel_functions_equal_mpmath_across_their_seams(name: str) -> None:
    low = -20.0 if name == "special_airy_ai" else 0.01
    x = torch.linspace(low, 40, 61, dtype=torch.float64)
    expected = torch.tensor([float(ORACLES[name](v)) for v in x.tolist()], dtype=torch.float64)
    actual = lower(ROWS[f"aten::{name}"], (x,), {})
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in ORACLES if "airy" not in n])
def test_bessel_functions_at_and_below_zero_equal_cpu(name: str) -> None:
    x = torch.tensor([0.0, -1.5, 1e-9, 3.0])
    check(f"aten::{name}", x, table=TABLE)


@pytest.mark.parametrize("order", [0, 1])
def test_scaled_bessel_k_equals_cpu(order: int) -> None:
    x = torch.tensor([1e-8, 0.1, 1.0, 50.0, 700.0])
    check(f"aten::special_scaled_modified_bessel_k{order}", x, table=TABLE)


def test_spherical_bessel_equals_cpu() -> None:
    check("aten::special_spherical_bessel_j0", torch.tensor([0.0, 0.2, -3.0, INF]), table=TABLE)


FAMILIES = [
    row.overload for row in polynomials.TABLE if not row.overload.endswith(("n_scalar", "x_scalar"))
]


@pytest.mark.parametrize("overload", FAMILIES)
def test_polynomials_equal_cpu(overload: str) -> None:
    x = torch.tensor([-1.0, -0.3, 0.0, 0.5, 1.0, 1.5], dtype=torch.float64)
    n = torch.tensor([[-1], [0], [1], [2], [5], [9]])
    check(overload, x, n, table=TABLE)


@pytest.mark.parametrize("overload", FAMILIES)
def test_polynomials_of_number_degree_equal_cpu(overload: str) -> None:
    check(f"{overload}.n_scalar", torch.tensor([0.2, 0.7]), 3, table=TABLE)
