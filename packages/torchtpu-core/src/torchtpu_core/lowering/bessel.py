# SPDX-License-Identifier: Apache-2.0
"""Bessel functions J, Y and K of orders 0 and 1, and the Airy function Ai.

J, Y and Ai come from their power series near zero and from Hankel's asymptotic
series beyond, both in float64 whatever the input: the power series cancels up to
five digits at the seam, and float64 has them to spare. K is an integral of positive
terms, which the trapezoidal rule sums to full precision in the input's dtype.

Reference: NIST Digital Library of Mathematical Functions, 9.4, 9.7, 10.2, 10.8,
10.17 and 10.32.9 (https://dlmf.nist.gov).

Symbols: ``nu`` order; ``z`` non-negative argument; ``chi`` the phase of 10.17.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering.elementwise import constant, elementwise, rows
from torchtpu_core.lowering.table import Lowering

#: Where J and Y change from the power series to the asymptotic one: e**-24 is lost.
_BESSEL_SEAM = 12.0
_AIRY_SEAM = 6.0
_SERIES_TERMS = 40
_ASYMPTOTIC_TERMS = 12
_TRAPEZOIDS = 96
#: Below this K is its leading term to full precision.
_TINY = 1e-6


def _horner(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + constant(c, x)
    return value


def _alternating(terms: Sequence[float], start: int) -> list[float]:
    """Every second of `terms` from `start`, with alternating signs: the P or Q series."""
    return [(-1) ** k * t for k, t in enumerate(terms[start::2])]


def _hankel_terms(nu: int) -> list[float]:
    """The a_k of 10.17.1."""
    terms = [1.0]
    for k in range(1, 2 * _ASYMPTOTIC_TERMS):
        terms.append(terms[-1] * (4 * nu * nu - (2 * k - 1) ** 2) / (8 * k))
    return terms


def _airy_terms() -> list[float]:
    """The u_k of 9.7.2."""
    terms = [1.0]
    for k in range(2 * _ASYMPTOTIC_TERMS - 1):
        factor = (6 * k + 1) * (6 * k + 3) * (6 * k + 5) / (216 * (k + 1) * (2 * k + 1))
        terms.append(terms[-1] * factor)
    return terms


def _asymptotic(nu: int, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """J and Y of order `nu` for large `z` (10.17.3, 10.17.4)."""
    terms, inverse = _hankel_terms(nu), constant(1, z) / z
    p = _horner(_alternating(terms, 0), inverse * inverse)
    q = _horner(_alternating(terms, 1), inverse * inverse) * inverse
    chi = z - constant((nu / 2 + 0.25) * math.pi, z)
    cosine, sine = lax.cos(chi), lax.sin(chi)
    size = lax.sqrt(constant(2 / math.pi, z) * inverse)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _power_series(nu: int, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """J and Y of order `nu` for small `z` (10.2.2, 10.8.1)."""
    quarter, half = z * z * constant(0.25, z), z * constant(0.5, z)
    one = constant(1, z)
    harmonic = constant(-2 * np.euler_gamma + (1.0 if nu else 0.0), z)

    def step(k: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        term, psi, j, log_part = state
        below, above = (k + 1).astype(z.dtype), (k + 1 + nu).astype(z.dtype)
        j, log_part = j + term, log_part + term * psi
        return -term * quarter / (below * above), psi + one / below + one / above, j, log_part

    first = half if nu else jnp.ones_like(z)
    start = (first, harmonic, jnp.zeros_like(z), jnp.zeros_like(z))
    _, _, j, log_part = lax.fori_loop(0, _SERIES_TERMS, step, start)
    y = (constant(2, z) * lax.log(half) * j - log_part) / constant(math.pi, z)
    return j, (y - constant(2 / math.pi, z) / z if nu else y)


def _both(nu: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """J and Y of order `nu` of non-negative `x`, in float64."""
    z = x.astype(np.float64)
    small = z < constant(_BESSEL_SEAM, z)
    near = _power_series(nu, jnp.where(small, z, constant(1, z)))
    far = _asymptotic(nu, jnp.where(small, constant(_BESSEL_SEAM, z), z))
    return jnp.where(small, near[0], far[0]), jnp.where(small, near[1], far[1])


def _bessel_j(nu: int) -> Callable[[jax.Array], jax.Array]:
    def bessel_j(x: jax.Array) -> jax.Array:
        value = _both(nu, lax.abs(x))[0].astype(x.dtype)
        return jnp.where(x < constant(0, x), -value, value) if nu else value

    return bessel_j


def _bessel_y(nu: int) -> Callable[[jax.Array], jax.Array]:
    """Minus infinity at 0, NaN below."""

    def bessel_y(x: jax.Array) -> jax.Array:
        value = _both(nu, x)[1].astype(x.dtype)
        value = jnp.where(x == constant(0, x), constant(-math.inf, x), value)
        return jnp.where(x < constant(0, x), constant(math.nan, x), value)

    return bessel_y


def _bessel_k(nu: int, scaled: bool) -> Callable[[jax.Array], jax.Array]:
    """K of order `nu`, times ``exp(x)`` if `scaled`; infinite at 0, NaN below."""

    def bessel_k(x: jax.Array) -> jax.Array:
        z = lax.max(x, constant(_TINY, x))
        # Where the integrand has fallen below exp(-40) nothing is left to sum.
        end = constant(2, z) * lax.asinh(lax.sqrt(constant(20, z) / z))
        width = end / constant(_TRAPEZOIDS, z)

        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            t = (i + 1).astype(z.dtype) * width
            sine = lax.sinh(t * constant(0.5, t))
            term = lax.exp(constant(-2, z) * z * sine * sine)
            return total + (term * lax.cosh(t) if nu else term)

        total = lax.fori_loop(0, _TRAPEZOIDS, step, jnp.full_like(z, 0.5)) * width
        half = x * constant(0.5, x)
        leading = constant(1, x) / x if nu else -lax.log(half) - constant(np.euler_gamma, x)
        value = jnp.where(x < constant(_TINY, x), leading, total)
        value = jnp.where(x < constant(0, x), constant(math.nan, x), value)
        return value if scaled else value * lax.exp(-x)

    return bessel_k


def _airy_series(x: jax.Array) -> jax.Array:
    """Ai by its Maclaurin series (9.4.1)."""
    cube = x * x * x

    def step(k: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        f, g, sum_f, sum_g = state
        n = (3 * k).astype(x.dtype)
        two, three, four = (n + constant(c, x) for c in (2, 3, 4))
        return f * cube / (two * three), g * cube / (three * four), sum_f + f, sum_g + g

    start = (jnp.ones_like(x), x, jnp.zeros_like(x), jnp.zeros_like(x))
    _, _, f, g = lax.fori_loop(0, _SERIES_TERMS, step, start)
    at_zero = 3 ** (-2 / 3) / math.gamma(2 / 3)
    slope = 3 ** (-1 / 3) / math.gamma(1 / 3)
    return constant(at_zero, x) * f - constant(slope, x) * g


def _airy_asymptotic(x: jax.Array) -> jax.Array:
    """Ai of large arguments of either sign (9.7.5, 9.7.9)."""
    z = lax.abs(x)
    root = lax.sqrt(z)
    zeta = constant(2 / 3, z) * z * root
    inverse, terms = constant(1, z) / zeta, _airy_terms()
    size = constant(1 / math.sqrt(math.pi), z) / lax.sqrt(root)
    decaying = _horner([(-1) ** k * t for k, t in enumerate(terms[:_ASYMPTOTIC_TERMS])], inverse)
    falling = constant(0.5, z) * size * lax.exp(-zeta) * decaying
    p = _horner(_alternating(terms, 0), inverse * inverse)
    q = _horner(_alternating(terms, 1), inverse * inverse) * inverse
    phase = zeta - constant(math.pi / 4, z)
    swinging = size * (lax.cos(phase) * p + lax.sin(phase) * q)
    return jnp.where(x < constant(0, x), swinging, falling)


def _airy_ai(x: jax.Array) -> jax.Array:
    wide = x.astype(np.float64)
    seam = constant(_AIRY_SEAM, wide)
    small = lax.abs(wide) < seam
    near = _airy_series(jnp.where(small, wide, constant(0, wide)))
    far = _airy_asymptotic(jnp.where(small, seam, wide))
    return jnp.where(small, near, far).astype(x.dtype)


def _spherical_j0(x: jax.Array) -> jax.Array:
    is_zero = x == constant(0, x)
    value = lax.sin(x) / jnp.where(is_zero, constant(1, x), x)
    value = jnp.where(jnp.isinf(x), constant(0, x), value)
    return jnp.where(is_zero, constant(1, x), value)


_FUNCTIONS = (
    ("special_bessel_j0", _bessel_j(0)),
    ("special_bessel_j1", _bessel_j(1)),
    ("special_bessel_y0", _bessel_y(0)),
    ("special_bessel_y1", _bessel_y(1)),
    ("special_modified_bessel_k0", _bessel_k(0, scaled=False)),
    ("special_modified_bessel_k1", _bessel_k(1, scaled=False)),
    ("special_scaled_modified_bessel_k0", _bessel_k(0, scaled=True)),
    ("special_scaled_modified_bessel_k1", _bessel_k(1, scaled=True)),
    ("special_airy_ai", _airy_ai),
    ("special_spherical_bessel_j0", _spherical_j0),
)

TABLE: tuple[Lowering, ...] = (
    *rows(_FUNCTIONS, lambda function: elementwise(function, floating=True)),
)
