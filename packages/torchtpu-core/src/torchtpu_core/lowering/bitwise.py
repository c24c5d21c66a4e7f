# SPDX-License-Identifier: Apache-2.0
"""Bit operations, shifts and the integer functions gcd and lcm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import Elementwise, constant, elementwise, rows
from torchtpu_core.lowering.table import Lowering


def _overshoot(x: jax.Array, shift: jax.Array) -> jax.Array:
    """Where a shift leaves no bit: C leaves that undefined, PyTorch does not."""
    bits = constant(np.iinfo(x.dtype).bits, shift)
    return (shift < constant(0, shift)) | (shift >= bits)


def _shift_left(x: jax.Array, shift: jax.Array) -> jax.Array:
    """``x << shift``; 0 for a shift out of range; floats are multiplied by ``2**shift``."""
    if dtypes.is_floating(x.dtype):
        return x * lax.exp2(shift)
    return jnp.where(_overshoot(x, shift), constant(0, x), lax.shift_left(x, shift))


def _shift_right(x: jax.Array, shift: jax.Array) -> jax.Array:
    """``x >> shift`` with the sign kept; a shift out of range leaves sign bits only."""
    if dtypes.is_floating(x.dtype):
        return x / lax.exp2(shift)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return jnp.where(_overshoot(x, shift), constant(0, x), lax.shift_right_logical(x, shift))
    most = constant(np.iinfo(x.dtype).bits - 1, x)
    return lax.shift_right_arithmetic(x, jnp.where(_overshoot(x, shift), most, shift))


def _gcd(x: jax.Array, y: jax.Array) -> jax.Array:
    """Greatest common divisor by Euclid, of the absolute values; ``gcd(0, 0)`` is 0."""

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = pair
        done = b == constant(0, b)
        rest = lax.rem(a, jnp.where(done, constant(1, b), b))
        return jnp.where(done, a, b), jnp.where(done, b, rest)

    def unfinished(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(pair[1] != constant(0, pair[1]))

    return lax.while_loop(unfinished, step, (jnp.abs(x), jnp.abs(y)))[0]


def _lcm(x: jax.Array, y: jax.Array) -> jax.Array:
    divisor = _gcd(x, y)
    part = lax.div(x, jnp.where(divisor == constant(0, x), constant(1, x), divisor))
    return jnp.abs(part * y)


_LOGIC = (
    ("bitwise_and", lax.bitwise_and),
    ("bitwise_or", lax.bitwise_or),
    ("bitwise_xor", lax.bitwise_xor),
)
_SHIFTS = (("bitwise_left_shift", _shift_left), ("bitwise_right_shift", _shift_right))
_OPERATORS = (("__lshift__", _shift_left), ("__rshift__", _shift_right))

_OTHERS = (("bitwise_not", lax.bitwise_not), ("gcd", _gcd), ("lcm", _lcm))


def _variants(
    pairs: Iterable[tuple[str, Elementwise]], kinds: Iterable[str]
) -> Iterator[tuple[str, Elementwise]]:
    kinds = tuple(kinds)
    return ((f"{name}.{kind}", function) for name, function in pairs for kind in kinds)


TABLE: tuple[Lowering, ...] = (
    *rows(_variants(_LOGIC, ("Tensor", "Scalar", "Scalar_Tensor")), elementwise),
    *rows(_variants(_SHIFTS, ("Tensor", "Tensor_Scalar", "Scalar_Tensor")), elementwise),
    *rows(_variants(_OPERATORS, ("Tensor", "Scalar")), elementwise),
    *rows(_OTHERS, elementwise),
)
