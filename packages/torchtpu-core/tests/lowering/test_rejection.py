# SPDX-License-Identifier: Apache-2.0
"""Gamma, Poisson and binomial numbers follow their distribution functions, at fixed seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributions import Binomial, Poisson
from torchtpu_core.lowering import distributions
from torchtpu_core.testing.lowering import lower

N = 20_000
#: sqrt(N) times the largest difference of distribution functions exceeds it once in 130,000
#: samples, by Kolmogorov's distribution; for counts more seldom.
FAR = 2.5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def draw(name: str, *args: torch.Tensor, seed: int = 0) -> Any:
    """One run of the row for ``aten::name``."""
    row = next(r for r in distributions.TABLE if r.overload == f"aten::{name}")
    return lower(row, args, {}, seed=seed)


def rows(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """`N` copies of each value, `(len(values), N)`."""
    return torch.tensor(values, dtype=dtype)[:, None].expand(-1, N).contiguous()


def assert_counts_follow(x: torch.Tensor, law: Any) -> None:
    """The sample's distribution function is near that of `law`."""
    top = int(x.max()) + 1
    truth = law.log_prob(torch.arange(top, dtype=torch.float64)).exp().cumsum(0)
    sample = x.long().bincount(minlength=top).double().cumsum(0) / N
    assert math.sqrt(N) * float((truth - sample).abs().max()) < FAR


@DTYPES
def test_gamma_numbers_follow_the_gamma_distribution_function(dtype: torch.dtype) -> None:
    alphas = [0.3, 1.0, 2.5, 40.0, 1e4]
    for alpha, x in zip(alphas, draw("_standard_gamma", rows(alphas, dtype)), strict=True):
        shape = torch.tensor(alpha, dtype=torch.float64)
        truth = torch.special.gammainc(shape, x.double().sort().values)
        distance = (truth - (torch.arange(N) + 0.5) / N).abs().max()
        assert math.sqrt(N) * float(distance) < FAR, alpha


@DTYPES
def test_poisson_numbers_follow_the_poisson_distribution_function(dtype: torch.dtype) -> None:
    rates = [0.01, 3.0, 9.99, 10.0, 30.0, 1e3]
    for rate, x in zip(rates, draw("poisson", rows(rates, dtype)), strict=True):
        assert_counts_follow(x, Poisson(torch.tensor(rate, dtype=torch.float64)))


@DTYPES
def test_binomial_numbers_follow_the_binomial_distribution_function(dtype: torch.dtype) -> None:
    counts = [1.0, 10.0, 30.0, 100.0, 1000.0, 1000.0]
    chances = [0.3, 0.9, 0.5, 0.05, 0.3, 0.999]
    found = draw("binomial", rows(counts, dtype), rows(chances, dtype))
    for n, p, x in zip(counts, chances, found, strict=True):
        assert_counts_follow(x, Binomial(int(n), torch.tensor(p, dtype=torch.float64)))


@pytest.mark.parametrize("mean", [1e6, 1e10])
def test_large_means_keep_mean_and_spread_in_float32(mean: float) -> None:
    spread = math.sqrt(mean)
    for name in ("poisson", "_standard_gamma"):
        x = draw(name, torch.full((N,), mean)).double()
        assert abs(float(x.mean()) - mean) < 5 * spread / math.sqrt(N)
        assert abs(float(x.std()) / spread - 1) < 5 / math.sqrt(2 * N)


NAN, INF = math.nan, math.inf
EDGES: list[tuple[str, list[list[float]], list[float]]] = [
    ("poisson", [[0, INF, 3e38]], [0, INF, 3e38]),
    ("_standard_gamma", [[0, 1e-30, INF, NAN, -1]], [0, 0, INF, NAN, NAN]),
    (
        "binomial",
        [[0, 0.7, -3, 10, 10, 10, 10], [0.5, 0.5, 0.5, 0, 1, 1.5, -1]],
        [0, 0, 0, 0, 10, 10, 0],
    ),
    ("binomial", [[10, NAN, INF], [NAN, 0.5, 0.5]], [NAN, NAN, NAN]),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", EDGES, ids=lambda c: c[0])
def test_parameters_at_the_edge_end_the_loops(
    case: tuple[str, list[list[float]], list[float]], dtype: torch.dtype
) -> None:
    name, parameters, expected = case
    found = draw(name, *(torch.tensor(p, dtype=dtype) for p in parameters))
    assert found.dtype == dtype
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=dtype), equal_nan=True, rtol=1e-6, atol=1e-37
    )


def test_dirichlet_samples_are_inside_the_simplex() -> None:
    """As on the CPU, so that their density is finite."""
    x = draw("_sample_dirichlet", torch.tensor([[1e-3, 1e-3], [0.0, 1.0], [1e-30, 1e-30]]))
    assert bool(((x > 0) & (x < 1)).all())


@pytest.mark.parametrize("name", ["poisson", "binomial", "_standard_gamma"])
def test_a_number_depends_on_its_place_alone(name: str) -> None:
    many = [torch.linspace(0.1, 40, 60), torch.linspace(0, 1, 60)]
    used = many if name == "binomial" else many[:1]
    torch.testing.assert_close(draw(name, *used)[:20], draw(name, *(x[:20] for x in used)))
