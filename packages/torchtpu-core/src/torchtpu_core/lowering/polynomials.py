# SPDX-License-Identifier: Apache-2.0
"""Orthogonal polynomials of run-time degree, by their three-term recurrences.

Degrees may differ from element to element, so the recurrence runs up to the largest
and each element keeps the value of its own degree. A negative degree gives 0.

Reference: NIST Digital Library of Mathematical Functions, table 18.9.1
(https://dlmf.nist.gov/18.9).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering.elementwise import constant, elementwise
from torchtpu_core.lowering.table import Lowering, native

#: Value of degree k + 1 from x, the degree k >= 1 and the values of degrees k and k - 1.
Recurrence = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _chebyshev(x: jax.Array, k: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return (x + x) * value - before


def _hermite_h(x: jax.Array, k: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return (x + x) * value - (k + k) * before


def _hermite_he(x: jax.Array, k: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    return x * value - k * before


def _laguerre(x: jax.Array, k: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    one = constant(1, x)
    return ((k + k + one - x) * value - k * before) / (k + one)


def _legendre(x: jax.Array, k: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
    one = constant(1, x)
    return ((k + k + one) * x * value - k * before) / (k + one)


def _polynomial(
    recurrence: Recurrence, first: tuple[int, int], shifted: bool = False
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The family with values 1 and ``first[0] * x + first[1]`` at degrees 0 and 1.

    `shifted` families are those of ``2 x - 1``.
    """

    def polynomial(x: jax.Array, n: jax.Array) -> jax.Array:
        one, zero = constant(1, x), constant(0, x)
        degree = jnp.where(n < zero, lax.ceil(n), lax.floor(n))
        if shifted:
            x = x + x - one
        linear = constant(first[0], x) * x + constant(first[1], x)

        def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            k, value, before = state
            going = k < degree
            following = jnp.where(going, recurrence(x, k, value, before), value)
            return k + one, following, jnp.where(going, value, before)

        last = jnp.max(degree, initial=0)
        _, value, _ = lax.while_loop(
            lambda state: state[0] < last, step, (one, linear, jnp.ones_like(x))
        )
        value = jnp.where(degree == zero, one, value)
        return jnp.where(degree < zero, zero, value)

    return polynomial


_FAMILIES = (
    ("chebyshev_polynomial_t", _polynomial(_chebyshev, (1, 0))),
    ("chebyshev_polynomial_u", _polynomial(_chebyshev, (2, 0))),
    ("chebyshev_polynomial_v", _polynomial(_chebyshev, (2, -1))),
    ("chebyshev_polynomial_w", _polynomial(_chebyshev, (2, 1))),
    ("shifted_chebyshev_polynomial_t", _polynomial(_chebyshev, (1, 0), shifted=True)),
    ("shifted_chebyshev_polynomial_u", _polynomial(_chebyshev, (2, 0), shifted=True)),
    ("shifted_chebyshev_polynomial_v", _polynomial(_chebyshev, (2, -1), shifted=True)),
    ("shifted_chebyshev_polynomial_w", _polynomial(_chebyshev, (2, 1), shifted=True)),
    ("hermite_polynomial_h", _polynomial(_hermite_h, (2, 0))),
    ("hermite_polynomial_he", _polynomial(_hermite_he, (1, 0))),
    ("laguerre_polynomial_l", _polynomial(_laguerre, (-1, 1))),
    ("legendre_polynomial_p", _polynomial(_legendre, (1, 0))),
)

TABLE: tuple[Lowering, ...] = tuple(
    native(f"aten::special_{name}{variant}", elementwise(function, floating=True))
    for name, function in _FAMILIES
    for variant in ("", ".n_scalar", ".x_scalar")
)
