# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of one tensor: trigonometry, exponentials, rounding, signs.

Special functions (``erf``, ``lgamma``, Bessel) are in ``special.py``, activations of
networks in ``activations.py``.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import (
    Elementwise,
    constant,
    elementwise,
    is_bool,
    isnan,
    rows,
)
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native


def floating(function: Elementwise) -> Elementwise:
    """Integers become floats first: sine of an int tensor is a float tensor."""
    return elementwise(function, floating=True)


def _scaled(function: Elementwise, factor: float) -> Elementwise:
    """``function(x) * factor``."""
    return lambda x: function(x) * constant(factor, x)


def _exp2(x: jax.Array) -> jax.Array:
    return lax.exp(x * constant(math.log(2), x)) if dtypes.is_complex(x.dtype) else lax.exp2(x)


def _rsqrt(x: jax.Array) -> jax.Array:
    return constant(1, x) / lax.sqrt(x) if dtypes.is_complex(x.dtype) else lax.rsqrt(x)


def _reciprocal(x: jax.Array) -> jax.Array:
    return constant(1, x) / x


def _sinc(x: jax.Array) -> jax.Array:
    scaled = x * constant(math.pi, x)
    is_zero, one = x == constant(0, x), constant(1, x)
    return jnp.where(is_zero, one, lax.sin(scaled) / jnp.where(is_zero, one, scaled))


def _abs(x: jax.Array) -> jax.Array:
    return x if is_bool(x) or jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x)


def _absolute(self: jax.Array) -> jax.Array:
    """``abs``; of complex `self` the modulus, in the real dtype."""
    return _abs(self)


def _sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; 0 for NaN, as CPU PyTorch has it."""
    if is_bool(x):
        return x
    if dtypes.is_floating(x.dtype):
        return jnp.where(isnan(x), constant(0, x), lax.sign(x))
    return lax.sign(x)


def _round(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _trunc(x: jax.Array) -> jax.Array:
    return jnp.where(x < constant(0, x), lax.ceil(x), lax.floor(x))


def _frac(x: jax.Array) -> jax.Array:
    return x - _trunc(x)


def _on_floats(function: Elementwise) -> Elementwise:
    """`function` of floats; whole numbers are returned as they are."""
    return elementwise(lambda x: function(x) if dtypes.is_inexact(x.dtype) else x)


def _round_decimals(self: jax.Array, *, decimals: int) -> jax.Array:
    """Round to `decimals` digits after the point (before it if negative), in `self`'s dtype."""
    if not dtypes.is_floating(self.dtype):
        return self
    ten = constant(10.0 ** abs(decimals), self)
    if decimals < 0:
        return _round(self / ten) * ten
    return _round(self * ten) / ten


def _angle(self: jax.Array) -> jax.Array:
    """Argument of a complex number; of a real one 0 or pi, NaN kept."""
    if dtypes.is_complex(self.dtype):
        return lax.atan2(lax.imag(self), lax.real(self))
    if not dtypes.is_floating(self.dtype):
        self = cast(self, dtypes.default_float())
    angle = jnp.where(self < constant(0, self), constant(math.pi, self), constant(0, self))
    return jnp.where(isnan(self), self, angle)


def _nan_to_num(
    self: jax.Array,
    nan: Operand | None = None,
    posinf: Operand | None = None,
    neginf: Operand | None = None,
) -> jax.Array:
    """NaN and infinities replaced; by default by zero and the largest finite numbers."""
    if dtypes.is_complex(self.dtype):
        parts = (_nan_to_num(p, nan, posinf, neginf) for p in (lax.real(self), lax.imag(self)))
        return lax.complex(*parts)
    if not dtypes.is_floating(self.dtype):
        return self
    largest = jnp.finfo(self.dtype)
    high = float(largest.max) if posinf is None else posinf
    low = float(largest.min) if neginf is None else neginf
    result = jnp.where(isnan(self), cast(0.0 if nan is None else nan, self.dtype), self)
    result = jnp.where(self == constant(math.inf, self), cast(high, self.dtype), result)
    return jnp.where(self == constant(-math.inf, self), cast(low, self.dtype), result)


def _signbit(self: jax.Array) -> jax.Array:
    if dtypes.is_floating(self.dtype):
        return jnp.signbit(self)
    return self < constant(0, self) if not is_bool(self) else jnp.zeros(self.shape, np.bool_)


def _isinf(self: jax.Array) -> jax.Array:
    if dtypes.is_complex(self.dtype):
        return jnp.isinf(lax.real(self)) | jnp.isinf(lax.imag(self))
    return _is_value(math.inf)(lax.abs(self)) if dtypes.is_floating(self.dtype) else _never(self)


def _never(x: jax.Array) -> jax.Array:
    return jnp.zeros(x.shape, np.bool_)


def _is_value(value: float) -> Elementwise:
    def is_value(self: jax.Array) -> jax.Array:
        return self == constant(value, self) if dtypes.is_floating(self.dtype) else _never(self)

    return is_value


def _frexp(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mantissa in [0.5, 1) and exponent, ``self == mantissa * 2**exponent``."""
    mantissa, exponent = jnp.frexp(cast(self, dtypes.opmath(self.dtype)))
    return cast(mantissa, self.dtype), exponent.astype(np.int32)


def _neg(x: jax.Array) -> jax.Array:
    return lax.neg(x)


_FLOATING = (
    ("acos", lax.acos),
    ("acosh", lax.acosh),
    ("asin", lax.asin),
    ("asinh", lax.asinh),
    ("atan", lax.atan),
    ("atanh", lax.atanh),
    ("cos", lax.cos),
    ("cosh", lax.cosh),
    ("sin", lax.sin),
    ("sinh", lax.sinh),
    ("tan", lax.tan),
    ("tanh", lax.tanh),
    ("exp", lax.exp),
    ("exp2", _exp2),
    ("expm1", lax.expm1),
    ("log", lax.log),
    ("log10", _scaled(lax.log, 1 / math.log(10))),
    ("log1p", lax.log1p),
    ("log2", _scaled(lax.log, 1 / math.log(2))),
    ("sqrt", lax.sqrt),
    ("rsqrt", _rsqrt),
    ("reciprocal", _reciprocal),
    ("sigmoid", lax.logistic),
    ("sinc", _sinc),
    ("deg2rad", lambda x: x * constant(math.pi / 180, x)),
    ("rad2deg", lambda x: x * constant(180 / math.pi, x)),
)

_ROUNDING = (
    ("ceil", lax.ceil),
    ("floor", lax.floor),
    ("round", _round),
    ("trunc", _trunc),
    ("frac", _frac),
)

_SAME = (
    ("neg", _neg),
    ("sign", _sign),
    ("sgn", _sign),
    ("_conj_physical", jnp.conj),
)

TABLE: tuple[Lowering, ...] = (
    *rows(_FLOATING, floating),
    *rows(_ROUNDING, _on_floats),
    *rows(_SAME, elementwise),
    native("aten::abs", _absolute),
    native("aten::round.decimals", _round_decimals),
    native("aten::angle", _angle),
    native("aten::nan_to_num", _nan_to_num, runtime=("nan", "posinf", "neginf")),
    native("aten::signbit", _signbit),
    native("aten::isinf", _isinf),
    native("aten::isposinf", _is_value(math.inf)),
    native("aten::isneginf", _is_value(-math.inf)),
    native("aten::isnan", isnan),
    native("aten::frexp.Tensor", _frexp),
)
