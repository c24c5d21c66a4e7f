# SPDX-License-Identifier: Apache-2.0
"""Samplers that draw until an element is accepted: gamma, Poisson, binomial.

Each is a loop over all elements at once that goes on while one of them is open. Round `k`
draws the element's bits from its index and `k` alone, so an element has the same number
in an array of any shape, a padded one too. Nothing here checks its parameters.

References:
    Marsaglia and Tsang, "A simple method for generating gamma variables", TOMS 26(3), 2000.
    Hormann, "The transformed rejection method for generating Poisson random variables",
    Insurance: Mathematics and Economics 12(1), 1993 (PTRS).
    Hormann, "The generation of binomial random variates", J. Stat. Comput. Simul. 46, 1993 (BTRS).
    Loader, "Fast and accurate computation of binomial probabilities", 2000 (log of Poisson's
    mass without the cancellation of ``k log(mean) - mean - lgamma(k + 1)``).

Legend: k is a count; where its mean is below `_SMALL_MEAN`, it is found by inversion.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering.random import open_unit
from torchtpu_core.lowering.rng import Rng

#: Means from which the transformed rejections are valid.
_SMALL_MEAN = 10
#: Steps of an inversion between two looks at whether all elements are done.
_STEPS = 4

#: What one round draws: values, and which of them are accepted.
Round = Callable[[Rng], tuple[jax.Array, jax.Array]]


def _until_accepted(rng: Rng, start: jax.Array, is_open: jax.Array, draw: Round) -> jax.Array:
    """`start`, where open replaced by the first value that is accepted."""

    def turn(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        number, values, is_open = state
        drawn, accepted = draw(rng.round(number))
        return number + np.uint64(1), jnp.where(is_open, drawn, values), is_open & ~accepted

    state = (jnp.uint64(0), start, is_open)
    return lax.while_loop(lambda s: jnp.any(s[2]), turn, state)[1]


def gamma_sample(alpha: jax.Array, rng: Rng) -> jax.Array:
    """Gamma numbers of scale 1, which may be 0; a shape that is no shape gives NaN."""
    main, log_boost = _gamma_factors(alpha, rng)
    return main * jnp.exp(log_boost)


def log_gamma_sample(alpha: jax.Array, rng: Rng) -> jax.Array:
    """The logarithms of gamma numbers, also of those that are too small for the dtype."""
    main, log_boost = _gamma_factors(alpha, rng)
    return jnp.log(main) + log_boost


def _gamma_factors(alpha: jax.Array, rng: Rng) -> tuple[jax.Array, jax.Array]:
    """A factor of gamma numbers and the logarithm of the other, which is 1 for shapes from 1 on.

    Below 1 they are numbers of shape alpha + 1 times u to the power 1 / alpha.
    """
    u = open_unit(rng, alpha.shape, alpha.dtype)
    d = jnp.where(alpha < 1, alpha + 1, alpha) - alpha.dtype.type(1 / 3)
    c = lax.rsqrt(9 * d)

    def draw(rng: Rng) -> tuple[jax.Array, jax.Array]:
        x = rng.normal(alpha.shape, alpha.dtype)
        u = open_unit(rng, alpha.shape, alpha.dtype)
        t = c * x
        square = x * x
        log_v = 3 * jnp.log1p(jnp.maximum(t, -1))
        exact = jnp.log(u) < square / 2 + d * (log_v - t * (3 + t * (3 + t)))
        surely = u < 1 - alpha.dtype.type(0.0331) * square * square
        return d * (1 + t) ** 3, (t > -1) & (exact | surely)

    usual = (alpha > 0) & jnp.isfinite(alpha)
    edge = jnp.where(alpha >= 0, alpha, jnp.nan).astype(alpha.dtype)
    main = _until_accepted(rng, edge, usual, draw)
    return main, jnp.where(usual & (alpha < 1), jnp.log(u) / alpha, 0)


def _remainder_of_stirling(k: jax.Array) -> jax.Array:
    """``log(k!) - (k log(k) - k + log(2 pi k) / 2)`` for whole k; 0 for k = 0."""
    inverse = 1 / jnp.maximum(k, _SMALL_MEAN)
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    for small in range(1, _SMALL_MEAN):
        stirling = small * math.log(small) - small + math.log(2 * math.pi * small) / 2
        series = jnp.where(k == small, k.dtype.type(math.lgamma(small + 1) - stirling), series)
    return jnp.where(k == 0, k.dtype.type(0), series)


def _deviance(k: jax.Array, mean: jax.Array) -> jax.Array:
    """``k log(k / mean) + mean - k``, which is not negative, also where both are near."""
    apart = k - mean
    v = apart / (k + mean)
    square = v * v
    terms = 10 if k.dtype == np.float64 else 5  # |v| < 0.1: what is left out is below an ulp
    series = jnp.zeros_like(square)
    for i in range(terms, 0, -1):
        series = (series + k.dtype.type(1 / (2 * i + 1))) * square
    near = apart * v + 2 * k * v * series
    ratio = jnp.where(k > 0, k, 1) / mean
    return jnp.where(jnp.abs(v) < k.dtype.type(0.1), near, k * jnp.log(ratio) - apart)


def _log_mass(k: jax.Array, mean: jax.Array) -> jax.Array:
    """The logarithm of a Poisson distribution's mass at a whole number `k`."""
    half_log = jnp.where(k > 0, jnp.log(jnp.where(k > 0, k, 1) * (2 * math.pi)) / 2, 0)
    return -(_deviance(k, mean) + _remainder_of_stirling(k) + half_log).astype(k.dtype)


def _transformed(
    rng: Rng, a: jax.Array, b: jax.Array, centre: jax.Array, sure: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """A candidate of a transformed rejection.

    Returns:
        a whole number, whether it is surely accepted, whether it may be, and what its mass
        must not be below, but for a factor of the distribution.
    """
    u = open_unit(rng, centre.shape, centre.dtype) - centre.dtype.type(0.5)
    v = open_unit(rng, centre.shape, centre.dtype)
    us = centre.dtype.type(0.5) - jnp.abs(u)
    k = jnp.floor((2 * a / us + b) * u + centre)
    surely = (us >= centre.dtype.type(0.07)) & (v <= sure)
    possible = (k >= 0) & ((us >= centre.dtype.type(0.013)) | (v <= us))
    return k, surely, possible, jnp.log(v / (a / (us * us) + b))


def _inverted(
    u: jax.Array,
    first: jax.Array,
    mean: jax.Array,
    is_open: jax.Array,
    ratio: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """The k at which cumulated masses pass `u`.

    Args:
        u: uniform numbers.
        first: the mass at 0.
        mean: up to it masses may rise.
        is_open: which elements to find; others get 0.
        ratio: the mass at k over that at k - 1, which falls with k.
    """
    least = jnp.finfo(u.dtype).eps / 16  # of smaller masses rounding leaves nothing

    def further(u: jax.Array, mass: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        following = mass * ratio(k + 1)
        return is_open & (u > mass) & ((following > least) | (k < mean)), following

    def turn(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, mass, k = state
        for _ in range(_STEPS):
            on, following = further(u, mass, k)
            u, k = jnp.where(on, u - mass, u), jnp.where(on, k + 1, k)
            mass = jnp.where(on, following, mass)
        return u, mass, k

    state = (u, first, jnp.zeros_like(u))
    return lax.while_loop(lambda s: jnp.any(further(*s)[0]), turn, state)[2]


def poisson_sample(mean: jax.Array, rng: Rng) -> jax.Array:
    """Poisson counts in `mean`'s dtype; a mean that is not finite gives itself."""
    small = mean < _SMALL_MEAN
    u = open_unit(rng, mean.shape, mean.dtype)
    few = _inverted(u, jnp.exp(-mean), mean, small & (mean > 0), lambda k: mean / k)
    large = jnp.isfinite(mean) & ~small
    mu = jnp.where(large, mean, mean.dtype.type(_SMALL_MEAN))
    b = 0.931 + 2.53 * jnp.sqrt(mu)
    a = -0.059 + 0.02483 * b
    scale = jnp.log(1.1239 + 1.1328 / (b - 3.4))

    def draw(rng: Rng) -> tuple[jax.Array, jax.Array]:
        k, surely, possible, bound = _transformed(rng, a, b, mu + 0.43, 0.9277 - 3.6224 / (b - 2))
        return k, surely | (possible & (bound + scale <= _log_mass(k, mu)))

    return _until_accepted(rng, jnp.where(small, few, mean), large, draw)


def binomial_sample(count: jax.Array, prob: jax.Array, rng: Rng) -> jax.Array:
    """Binomial counts; as on the CPU a probability from 1 on gives `count`, one up to 0 none."""
    n = jnp.floor(count)
    p = jnp.minimum(prob, 1 - prob)
    usual = (n > 0) & jnp.isfinite(n) & (p > 0)
    small = n * p < _SMALL_MEAN
    u = open_unit(rng, n.shape, n.dtype)
    odds = p / (1 - p)
    few = _inverted(
        u,
        jnp.exp(n * jnp.log1p(-p)),
        n * p,
        usual & small,
        lambda k: odds * (n - k + 1) / k,
    )
    many = _many_successes(n, p, usual & ~small, rng)
    drawn = jnp.where(small, few, many)
    drawn = jnp.where(prob > n.dtype.type(0.5), n - drawn, drawn)
    certain = jnp.where((n <= 0) | (prob <= 0), 0, jnp.where(prob >= 1, count, jnp.nan))
    return jnp.where(usual, drawn, certain.astype(n.dtype))


def _many_successes(n: jax.Array, p: jax.Array, chosen: jax.Array, rng: Rng) -> jax.Array:
    """Binomial counts by BTRS where `chosen`: p up to 1/2 and a mean from `_SMALL_MEAN` on."""
    n, p = jnp.where(chosen, n, n.dtype.type(20)), jnp.where(chosen, p, p.dtype.type(0.5))
    mean, rest = n * p, n * (1 - p)
    spread = jnp.sqrt(mean * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    scale = jnp.log((2.83 + 5.1 / b) * spread)
    mode = jnp.floor(mean + p)

    def log_mass(k: jax.Array) -> jax.Array:  # but for a summand that all k share
        return _log_mass(k, mean) + _log_mass(jnp.maximum(n - k, 0), rest)

    def draw(rng: Rng) -> tuple[jax.Array, jax.Array]:
        k, surely, possible, bound = _transformed(rng, a, b, mean + 0.5, 0.92 - 4.2 / b)
        likely = bound + scale <= log_mass(k) - log_mass(mode)
        return k, (k <= n) & (surely | (possible & likely))

    return _until_accepted(rng, jnp.zeros_like(n), chosen, draw)
