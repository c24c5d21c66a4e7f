# SPDX-License-Identifier: Apache-2.0
"""Divisions and remainders.

Integer division by zero raises as on CPU; floor and remainder follow the sign rules
of Python, ``fmod`` and ``rounding_mode="trunc"`` those of C.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.elementwise import constant, elementwise, rows
from torchtpu_core.lowering.promotion import Operand, cast, promote
from torchtpu_core.lowering.table import Lowering, native


def _nonzero_divisor(y: jax.Array) -> jax.Array:
    """`y`, reported if an element is zero: XLA would return -1 for a quotient."""
    checks.require(y != constant(0, y), RuntimeError, "ZeroDivisionError")
    return y


def div(self: Operand, other: Operand) -> jax.Array:
    """True division."""
    (x, y), result = promote(self, other, floating=True)
    return cast(x / y, result)


def _floor_div(x: jax.Array, y: jax.Array) -> jax.Array:
    """Quotient rounded down; for floats by the remainder, so that it agrees with it."""
    if not dtypes.is_floating(x.dtype):
        quotient = lax.div(x, _nonzero_divisor(y))
        rest = x - quotient * y
        return quotient - ((rest != 0) & ((rest < 0) != (y < 0))).astype(x.dtype)
    zero, half, one = constant(0, x), constant(0.5, x), constant(1, x)
    rest = lax.rem(x, y)
    quotient = (x - rest) / y
    quotient = jnp.where((rest != zero) & ((y < zero) != (rest < zero)), quotient - one, quotient)
    down = lax.floor(quotient)
    down = jnp.where(quotient - down > half, down + one, down)
    signed_zero = jnp.copysign(zero, x / y)
    return jnp.where(y == zero, x / y, jnp.where(quotient == zero, signed_zero, down))


def _trunc_div(x: jax.Array, y: jax.Array) -> jax.Array:
    if not dtypes.is_floating(x.dtype):
        return lax.div(x, _nonzero_divisor(y))
    quotient = x / y
    return jnp.where(quotient < constant(0, x), lax.ceil(quotient), lax.floor(quotient))


floor_divide = elementwise(_floor_div)


_truncated = elementwise(_trunc_div)


def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None = None) -> jax.Array:
    """Division with ``rounding_mode`` None, ``"floor"`` or ``"trunc"``."""
    if rounding_mode is None:
        return div(self, other)
    return floor_divide(self, other) if rounding_mode == "floor" else _truncated(self, other)


def _fmod(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.rem(x, y if dtypes.is_floating(x.dtype) else _nonzero_divisor(y))


def _remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    """The remainder with the divisor's sign."""
    rest, zero = _fmod(x, y), constant(0, x)
    return jnp.where((rest != zero) & ((rest < zero) != (y < zero)), rest + y, rest)


def _rounded(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return elementwise(function, rounded=True)


_REMAINDERS = (
    ("fmod.Tensor", _fmod),
    ("fmod.Scalar", _fmod),
    ("remainder.Tensor", _remainder),
    ("remainder.Scalar", _remainder),
    ("remainder.Scalar_Tensor", _remainder),
)


TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::div.{kind}", div) for kind in ("Tensor", "Scalar")),
    *(native(f"aten::div.{kind}", div_mode) for kind in ("Tensor_mode", "Scalar_mode")),
    *rows(_REMAINDERS, _rounded),
    *(native(f"aten::floor_divide{kind}", floor_divide) for kind in ("", ".Scalar")),
)
