# SPDX-License-Identifier: Apache-2.0
"""Random ops have the distributions they claim, at fixed seeds.

A sample of ``N`` has mean within ``5 s / sqrt(N)`` of the truth except once in a
million; seeds are fixed, so a test that passes keeps passing.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import distributions, random
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.testing.lowering import check, lower

TABLE = random.TABLE + distributions.TABLE
N = 20_000
BLANK = torch.zeros(N)


def draw(name: str, *args: Any, seed: int = 0, **keywords: Any) -> Any:
    """One run of the row for ``aten::name``."""
    row = next(r for r in TABLE if r.overload == f"aten::{name}")
    return lower(row, args, keywords, seed=seed)


def assert_moments(x: torch.Tensor, mean: float, std: float) -> None:
    """The sample mean and standard deviation agree with the truth to five standard errors."""
    x = x.double()
    kurtosis = ((x - mean) ** 4).mean() / std**4
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(len(x))
    assert abs(x.std() / std - 1) < 5 * float((kurtosis - 1).sqrt()) / 2 / math.sqrt(len(x))


ONES = torch.ones(N)
P, LOGNORMAL_STD = 0.3, math.sqrt((math.exp(0.25) - 1) * math.exp(0.25))
MOMENTS: list[tuple[str, tuple[Any, ...], float, float]] = [
    ("normal_", (BLANK, 2.0, 3.0), 2, 3),
    ("normal_", (BLANK.double(), -1.0, 0.5), -1, 0.5),
    ("normal.Tensor_float", (2 * ONES, 3.0), 2, 3),
    ("normal.float_Tensor", (2.0, 3 * ONES), 2, 3),
    ("normal.Tensor_Tensor", (2 * ONES, 3 * ONES), 2, 3),
    ("normal.float_float", (1.0, 2.0, [N]), 1, 2),
    ("randn", ([N],), 0, 1),
    ("uniform", (BLANK, -1.0, 3.0), 1, 4 / math.sqrt(12)),
    ("rand", ([N],), 0.5, 1 / math.sqrt(12)),
    ("rand_like", (BLANK.bfloat16(),), 0.5 - 2**-9, 1 / math.sqrt(12)),
    ("log_normal", (BLANK, 0.0, 0.5), math.exp(0.125), LOGNORMAL_STD),
    ("exponential", (BLANK, 2.0), 0.5, 0.5),
    ("geometric", (BLANK, P), 1 / P, math.sqrt(1 - P) / P),
    ("bernoulli", (P * ONES,), P, math.sqrt(P * (1 - P))),
    ("bernoulli.p", (BLANK, P), P, math.sqrt(P * (1 - P))),
    ("bernoulli_.float", (BLANK.int(), P), P, math.sqrt(P * (1 - P))),
    ("bernoulli.Tensor", (BLANK, P * ONES), P, math.sqrt(P * (1 - P))),
    ("random.to", (BLANK, 10), 4.5, math.sqrt(99 / 12)),
    ("random.from", (BLANK.long(), -5, 5), -0.5, math.sqrt(99 / 12)),
    ("randint.low", (-5, 5, [N]), -0.5, math.sqrt(99 / 12)),
    ("randint_like", (BLANK, 10), 4.5, math.sqrt(99 / 12)),
    ("random", (torch.zeros(N, dtype=torch.int8),), 63.5, math.sqrt((128**2 - 1) / 12)),
    ("poisson", (4 * ONES,), 4, 2),
    ("binomial", (10 * ONES, P * ONES), 3, math.sqrt(10 * P * (1 - P))),
    ("_standard_gamma", (4 * ONES,), 4, 2),
]


@pytest.mark.parametrize("case", MOMENTS, ids=lambda c: c[0])
def test_sampler_has_the_moments_of_its_distribution(
    case: tuple[str, tuple[Any, ...], float, float],
) -> None:
    name, args, mean, std = case
    assert_moments(draw(name, *args), mean, std)


def test_cauchy_has_its_quartiles() -> None:
    quartiles = draw("cauchy", BLANK, 1.0, 2.0).quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.12, rtol=0)


def test_normal_numbers_follow_the_normal_distribution_function() -> None:
    x = draw("randn", [N]).sort().values
    distance = (torch.special.ndtr(x) - (torch.arange(N) + 0.5) / N).abs().max()
    # Kolmogorov's distribution: sqrt(N) D exceeds 2.5 once in 130,000 samples.
    assert math.sqrt(N) * float(distance) < 2.5


def test_complex_normal_has_variance_one_in_all() -> None:
    x = draw("randn", [N], dtype=torch.complex64)
    assert_moments(x.real, 0, math.sqrt(0.5))
    assert_moments(x.imag, 0, math.sqrt(0.5))
    assert abs(float((x.real * x.imag).mean())) < 5 * 0.5 / math.sqrt(N)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_uniform_never_reaches_its_upper_bound(dtype: torch.dtype) -> None:
    x = draw("rand", [N], dtype=dtype)
    assert x.dtype == dtype
    assert bool((x >= 0).all())
    assert bool((x < 1).all())


def test_dropout_scales_what_it_keeps() -> None:
    out, mask = draw("native_dropout", ONES, 0.25, True)
    assert mask.dtype == torch.bool
    assert_moments(mask, 0.75, math.sqrt(0.75 * 0.25))
    torch.testing.assert_close(out, mask / 0.75)


@pytest.mark.parametrize(("p", "train"), [(0.25, False), (1.0, True), (0.0, True)])
def test_dropout_that_is_certain_gives_cpu_values(p: float, train: bool) -> None:
    check("aten::native_dropout", torch.randn(4, 5), p, train, table=TABLE)


def test_dropout_backward_gives_cpu_values() -> None:
    mask = torch.tensor([True, False, True])
    check("aten::native_dropout_backward", torch.randn(3), mask, 1.25, table=TABLE)


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_randperm_is_a_permutation(n: int) -> None:
    assert draw("randperm", n).sort().values.tolist() == list(range(n))


def test_randperm_reaches_every_order() -> None:
    with jax.enable_x64(True):
        permute = jax.jit(lambda seed: random.permutation(3, Rng(seed, seed)))
        orders = {tuple(permute(np.uint64(s)).tolist()) for s in range(80)}
    assert len(orders) == 6


WEIGHTS = torch.tensor([1.0, 0.0, 3.0, 4.0])


def test_multinomial_with_replacement_follows_its_weights() -> None:
    counts = draw("multinomial", WEIGHTS, N, True).bincount(minlength=4)
    expected = WEIGHTS / WEIGHTS.sum()
    assert counts[1] == 0
    error = (counts / N - expected).abs()
    assert bool((error <= 5 * (expected * (1 - expected) / N).sqrt()).all())


def test_multinomial_without_replacement_has_the_first_choice_of_its_weights() -> None:
    picks = draw("multinomial", WEIGHTS.expand(N, 4).contiguous(), 3)
    assert bool((picks.sort(-1).values == torch.tensor([0, 2, 3])).all())
    first = picks[:, 0].bincount(minlength=4) / N
    torch.testing.assert_close(first, WEIGHTS / 8, atol=5 * 0.5 / math.sqrt(N), rtol=0)


def test_dirichlet_rows_sum_to_one_and_have_its_mean() -> None:
    alpha = torch.tensor([1.0, 2.0, 5.0])
    x = draw("_sample_dirichlet", alpha.expand(N, 3).contiguous())
    torch.testing.assert_close(x.sum(-1), ONES)
    torch.testing.assert_close(x.mean(0), alpha / 8, atol=5 * 0.17 / math.sqrt(N), rtol=0)


def test_gamma_gradient_gives_cpu_values() -> None:
    alpha, sample = torch.tensor([0.5, 2.0, 9.0]), torch.tensor([0.3, 2.5, 7.0])
    torch.testing.assert_close(
        draw("_standard_gamma_grad", alpha, sample),
        torch.ops.aten._standard_gamma_grad(alpha, sample),
        rtol=1e-3,
        atol=1e-4,
    )


def test_rrelu_draws_slopes_and_reports_them() -> None:
    out, noise = draw("rrelu_with_noise", -ONES, BLANK, 0.1, 0.5, True)
    assert_moments(noise, 0.3, 0.4 / math.sqrt(12))
    torch.testing.assert_close(out, -noise)
    positive, untouched = draw("rrelu_with_noise", ONES, BLANK, 0.1, 0.5, True)
    assert bool((positive == 1).all()) and bool((untouched == 1).all())


def test_seed_decides_the_numbers() -> None:
    first, again, other = (draw("randn", [8], seed=s) for s in (1, 1, 2))
    torch.testing.assert_close(first, again)
    assert not torch.equal(first, other)


REFUSED: list[tuple[str, tuple[Any, ...]]] = [
    ("bernoulli", (torch.tensor([2.0]),)),
    ("normal.Tensor_Tensor", (ONES, -ONES)),
    ("poisson", (-ONES,)),
    ("multinomial", (torch.tensor([-1.0, 1.0]), 1)),
    ("multinomial", (torch.tensor([float("nan"), 1.0]), 1)),
    ("multinomial", (torch.zeros(2), 1, True)),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[0])
def test_impossible_parameters_raise_as_on_cpu(case: tuple[str, tuple[Any, ...]]) -> None:
    name, args = case
    packet, _, variant = name.partition(".")
    with pytest.raises(RuntimeError):
        getattr(getattr(torch.ops.aten, packet), variant or "default")(*args)
    with pytest.raises(RuntimeError):
        draw(name, *args)
