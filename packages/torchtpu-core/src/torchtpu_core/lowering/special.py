# SPDX-License-Identifier: Apache-2.0
"""Special functions that XLA or JAX provides: error, gamma, zeta, modified Bessel I.

Bessel J, Y, K and Airy functions are in ``bessel.py``, orthogonal polynomials in
``polynomials.py``.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special as scipy_special

from torchtpu_core.lowering.elementwise import constant, elementwise, isnan, rows
from torchtpu_core.lowering.promotion import cast, promote
from torchtpu_core.lowering.table import Lowering, native


def _digamma(x: jax.Array) -> jax.Array:
    """NaN at the negative integers, minus infinity at 0 (plus at -0), as CPU PyTorch has it."""
    pole = jnp.copysign(constant(math.inf, x), -x)
    return jnp.where(x == constant(0, x), pole, lax.digamma(x))


def _i0(x: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(x)) * lax.bessel_i0e(x)


def _i1(x: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(x)) * lax.bessel_i1e(x)


def _entr(x: jax.Array) -> jax.Array:
    """``-x log(x)``; 0 at 0, minus infinity below."""
    zero = constant(0, x)
    value = jnp.where(x == zero, zero, -x * lax.log(x))
    value = jnp.where(x < zero, constant(-math.inf, x), value)
    return jnp.where(isnan(x), x, value)


def _zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz's zeta function; `q` is first carried above 1, where XLA's series is accurate."""
    one = constant(1, q)

    def low(q: jax.Array) -> jax.Array:
        # Whole q are poles; far below zero no shift would ever end.
        return (q < one) & (q > constant(-1e4, q)) & (q != lax.floor(q))

    def shift(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, q = state
        return total + jnp.where(low(q), lax.pow(q, -x), 0), jnp.where(low(q), q + one, q)

    total, q = lax.while_loop(lambda s: jnp.any(low(s[1])), shift, (jnp.zeros_like(q), q))
    value = total + lax.zeta(x, q)
    pole = (q <= constant(0, q)) & (q == lax.floor(q))
    value = jnp.where(pole, constant(math.inf, x), value)
    return jnp.where(x < one, constant(math.nan, x), value)


def _trigamma(x: jax.Array) -> jax.Array:
    """The second derivative of ``lgamma``; reflected below one half."""
    half, one = constant(0.5, x), constant(1, x)
    low = x < half
    value = lax.zeta(jnp.full_like(x, 2), jnp.where(low, one - x, x))
    sine = lax.sin(constant(math.pi, x) * x)
    return jnp.where(low, constant(math.pi**2, x) / (sine * sine) - value, value)


def _polygamma(n: int, self: jax.Array) -> jax.Array:
    """The `n`-th derivative of ``digamma``."""
    (x,), result = promote(self, floating=True)
    if n == 0:
        return cast(_digamma(x), result)
    if n == 1:
        return cast(_trigamma(x), result)
    factor = constant((1.0 if n % 2 else -1.0) * math.factorial(n), x)
    return cast(factor * _zeta(jnp.full_like(x, n + 1), x), result)


def _mvlgamma(self: jax.Array, p: int) -> jax.Array:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    (x,), result = promote(self, floating=True)
    total = jnp.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    for i in range(p):
        total = total + lax.lgamma(x - constant(i / 2, x))
    return cast(total, result)


_UNARY = (
    ("erf", lax.erf),
    ("erfc", lax.erfc),
    ("erfinv", lax.erf_inv),
    ("lgamma", lax.lgamma),
    ("digamma", _digamma),
    ("i0", _i0),
    ("special_i0e", lax.bessel_i0e),
    ("special_i1", _i1),
    ("special_i1e", lax.bessel_i1e),
    ("special_modified_bessel_i0", _i0),
    ("special_modified_bessel_i1", _i1),
    ("special_entr", _entr),
    ("special_erfcx", scipy_special.erfcx),
    ("special_ndtri", scipy_special.ndtri),
    ("special_log_ndtr", scipy_special.log_ndtr),
)

_BINARY = (
    ("special_zeta", _zeta),
    ("special_zeta.self_scalar", _zeta),
    ("special_zeta.other_scalar", _zeta),
    ("igamma", lax.igamma),
    ("igammac", lax.igammac),
)

TABLE: tuple[Lowering, ...] = (
    *rows(_UNARY, lambda function: elementwise(function, floating=True)),
    *rows(_BINARY, lambda function: elementwise(function, floating=True)),
    native("aten::polygamma", _polygamma),
    native("aten::polygamma_", lambda self, n: _polygamma(n, self)),
    native("aten::mvlgamma", _mvlgamma),
)
