# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on two or more operands: sums, products, powers, interpolation.

The divisions and remainders are in ``division.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dtypes, lanes, layout, mxu, streams
from torchtpu_core.lowering.elementwise import (
    constant,
    elementwise,
    is_bool,
    isnan,
    round_numbers,
    rows,
)
from torchtpu_core.lowering.promotion import Operand, Scalar, cast, promote, result_type
from torchtpu_core.lowering.table import Lowering, native


def _is_one(alpha: Operand) -> bool:
    return isinstance(alpha, (bool, int, float)) and alpha == 1


def _plus(x: jax.Array, y: jax.Array) -> jax.Array:
    return x | y if is_bool(x) else x + y


def _times(x: jax.Array, y: jax.Array) -> jax.Array:
    return x & y if is_bool(x) else x * y


def add(self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    """``self + alpha * other``; bools add by "or"."""
    whole = lanes.joined(self, other) or _in_rows(self, other)
    if whole is not None:
        x, y, shape = whole
        return layout.reshaped(add(x, y, alpha), shape)
    tokens = streams.are_tokens(self, other)
    if tokens:
        self, other = streams.written(self, other)
    (x, y), result = promote(*round_numbers(self, other))
    if not _is_one(alpha):
        y = _times(cast(cast(alpha, result), y.dtype), y)
    done = cast(_plus(x, y), result)
    return layout.summed(done) if tokens else done


def _in_rows(x: Operand, y: Operand) -> tuple[jax.Array, jax.Array, tuple[int, ...]] | None:
    """A product's rows and a bias, where the rows were split before the bias is added.

    So PyTorch adds it for tokens that do not lie in the order of their product's rows, and so do
    modules that keep the bias of their logits apart, as `(1, V)`. Of columns that fill no lanes
    XLA:TPU would have tokens along the lanes for the sum, and move all of it for who reads rows.
    """
    if not mxu.lowers_for("tpu") or not (isinstance(x, jax.Array) and isinstance(y, jax.Array)):
        return None
    rows = layout.matrix_of(x)
    if rows is None or rows.shape[1] % layout.LANES == 0:
        return None
    columns = rows.shape[1]
    if y.ndim > x.ndim or y.size != columns or y.shape[-1:] != (columns,):
        return None
    return rows, lax.reshape(y, (columns,)), x.shape


def sub(self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    """``self - alpha * other``."""
    (x, y), result = promote(*round_numbers(self, other))
    return cast(x - (y if _is_one(alpha) else cast(cast(alpha, result), y.dtype) * y), result)


def rsub(self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    """``other - alpha * self``."""
    return sub(other, self, alpha)


mul = elementwise(_times)


def _exact_power(x: jax.Array, exponent: int) -> jax.Array | None:
    """Small whole powers by multiplication, in PyTorch's order; None for other exponents."""
    if exponent in (0, 1):
        return x if exponent else jnp.ones_like(x)
    if exponent == 2:
        return x * x
    return x * x * x if exponent == 3 else None


#: Exponents that `pow_static` knows a shorter way for.
_EXPONENTS = (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0)


def pow_scalar(self: jax.Array, exponent: Operand) -> jax.Array:
    """``self ** exponent``; a constant square or root needs no logarithm."""
    if isinstance(exponent, Scalar):
        if exponent.kind is int and not dtypes.is_inexact(self.dtype):
            checks.require(
                exponent.to(np.dtype(np.int64)) >= 0,
                RuntimeError,
                "Integers to negative integer powers are not allowed.",
            )
        return power(self, exponent)
    return pow_static(self, exponent)


def pow_static(self: jax.Array, exponent: Any) -> jax.Array:
    """``self ** exponent`` for a constant exponent."""
    result = result_type(self, exponent)
    x = cast(self, dtypes.opmath(result))
    if is_bool(x):
        return x | (exponent == 0)
    if exponent in (0, 1, 2, 3):
        exact = _exact_power(x, int(exponent.real))
        assert exact is not None
        return cast(exact, result)
    if not dtypes.is_inexact(result):
        return _integer_power(x, lax.full(x.shape, exponent, x.dtype))
    special: dict[complex, Callable[[], jax.Array]] = {
        0.5: lambda: lax.sqrt(x),
        -0.5: lambda: 1 / lax.sqrt(x) if dtypes.is_complex(x.dtype) else lax.rsqrt(x),
        -1: lambda: constant(1, x) / x,
        -2: lambda: constant(1, x) / (x * x),
    }
    power = special.get(exponent, lambda: _power(x, lax.full(x.shape, exponent, x.dtype)))
    return cast(power(), result)


def _integer_power(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Repeated squaring with wrap-around; a negative exponent gives 0 except for bases 1 and -1."""
    one, zero = constant(1, x), constant(0, x)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        value, base, left = state
        value = jnp.where((left & one) == one, value * base, value)
        return value, base * base, lax.shift_right_logical(left, jnp.broadcast_to(one, left.shape))

    start = (jnp.ones_like(x), x, jnp.where(exponent > zero, exponent, zero))
    value, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > zero), step, start)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return value
    unit = jnp.where((exponent & one) == one, x, one)
    inverse = jnp.where(lax.abs(x) == one, unit, zero)
    return jnp.where(exponent < zero, inverse, value)


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    if is_bool(x):
        return x | ~y
    if not dtypes.is_inexact(x.dtype):
        return _integer_power(x, y)
    return _complex_power(x, y) if dtypes.is_complex(x.dtype) else lax.pow(x, y)


def _complex_power(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x ** y``; XLA's logarithm of 0 gives NaN for every exponent that has an imaginary part."""
    zero = (x == constant(0, x)) & (lax.real(y) > 0)
    power = jnp.where(zero, constant(0, x), lax.pow(x, y))
    return jnp.where(y == constant(0, y), constant(1, x), power)


power = elementwise(_power)


def lerp(self: Operand, end: Operand, weight: Operand) -> jax.Array:
    """``self + weight * (end - self)``, computed from the nearer end so that both ends are met."""
    (x, y, w), _ = promote(self, end, weight)
    result = result_type(self, end)
    size = lax.abs(w) if dtypes.is_complex(w.dtype) else w
    near = size < constant(0.5, size)
    # One product: foreach ops of an optimizer make this for every parameter.
    start, part = lax.select(near, x, y), lax.select(near, w, w - constant(1, w))
    return cast(start + part * (y - x), result)


def addcmul(self: Operand, tensor1: Operand, tensor2: Operand, *, value: Operand = 1) -> jax.Array:
    """``self + value * tensor1 * tensor2``."""
    (x, a, b), result = promote(self, tensor1, tensor2)
    scaled = a if _is_one(value) else _times(cast(value, a.dtype), a)
    return cast(_plus(x, _times(scaled, b)), result)


def addcdiv(self: Operand, tensor1: Operand, tensor2: Operand, *, value: Operand = 1) -> jax.Array:
    """``self + value * tensor1 / tensor2``."""
    (x, a, b), result = promote(self, tensor1, tensor2)
    scaled = a if _is_one(value) else cast(value, a.dtype) * a
    return cast(x + scaled / b, result)


def _hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    x, y = lax.abs(x), lax.abs(y)
    big, small = lax.max(x, y), lax.min(x, y)
    one, zero, infinite = constant(1, x), constant(0, x), constant(math.inf, x)
    ratio = jnp.where(big == zero, zero, small / jnp.where(big == zero, one, big))
    length = big * lax.sqrt(one + ratio * ratio)
    return jnp.where((x == infinite) | (y == infinite), infinite, length)


def logaddexp(x: jax.Array, y: jax.Array) -> jax.Array:
    """``log(exp(x) + exp(y))`` of two arrays of one dtype, without overflow."""
    if dtypes.is_complex(x.dtype):
        larger = lax.real(x) >= lax.real(y)
        big, small = jnp.where(larger, x, y), jnp.where(larger, y, x)
        return jnp.where(
            (big == small) & ~jnp.isfinite(big), big, big + lax.log1p(lax.exp(small - big))
        )
    sum_ = lax.max(x, y) + lax.log1p(lax.exp(-lax.abs(x - y)))
    return jnp.where((x == y) & jnp.isinf(x), x, sum_)


def _logaddexp2(x: jax.Array, y: jax.Array) -> jax.Array:
    log2_e = constant(1 / math.log(2), x)
    sum_ = lax.max(x, y) + lax.log1p(lax.exp2(-lax.abs(x - y))) * log2_e
    return jnp.where((x == y) & jnp.isinf(x), x, sum_)


def _times_log(log: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def times_log(x: jax.Array, y: jax.Array) -> jax.Array:
        product = jnp.where(x == constant(0, x), constant(0, x), x * log(y))
        return jnp.where(isnan(y), y, product)

    return times_log


def _ldexp(self: Operand, other: Operand) -> jax.Array:
    """``self * 2**other``."""
    return mul(self, power(2.0, other))


def _copysign(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(jnp.signbit(y), -lax.abs(x), lax.abs(x))


def _nextafter(self: Operand, other: Operand) -> jax.Array:
    dtype = result_type(self, other)
    return lax.nextafter(*jnp.broadcast_arrays(cast(self, dtype), cast(other, dtype)))


def _complex(real: Operand, imag: Operand) -> jax.Array:
    (x, y), _ = promote(real, imag)
    return lax.complex(x, y)


def _polar(abs: Operand, angle: Operand) -> jax.Array:
    """The complex number of modulus `abs` and argument `angle`."""
    (size, turn), _ = promote(abs, angle)
    return lax.complex(size * lax.cos(turn), size * lax.sin(turn))


def _floating(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return elementwise(function, floating=True)


_FLOAT_PAIRS = (
    ("atan2", lax.atan2),
    ("copysign.Tensor", _copysign),
    ("copysign.Scalar", _copysign),
    ("xlogy.Tensor", _times_log(lax.log)),
    ("xlogy.Scalar_Self", _times_log(lax.log)),
    ("xlogy.Scalar_Other", _times_log(lax.log)),
    ("special_xlog1py", _times_log(lax.log1p)),
    ("special_xlog1py.self_scalar", _times_log(lax.log1p)),
    ("special_xlog1py.other_scalar", _times_log(lax.log1p)),
)


_PAIRS = (
    ("mul.Tensor", _times),
    ("mul.Scalar", _times),
    ("hypot", _hypot),
    ("logaddexp", logaddexp),
    ("logaddexp2", _logaddexp2),
    ("pow.Tensor_Tensor", _power),
    ("pow.Scalar", _power),
)

TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::add.{kind}", add) for kind in ("Tensor", "Scalar")),
    *(native(f"aten::sub.{kind}", sub) for kind in ("Tensor", "Scalar")),
    *(native(f"aten::rsub.{kind}", rsub) for kind in ("Tensor", "Scalar")),
    *(native(f"aten::lerp.{kind}", lerp) for kind in ("Tensor", "Scalar")),
    *rows(_PAIRS, elementwise),
    *rows(_FLOAT_PAIRS, _floating),
    native("aten::pow.Tensor_Scalar", pow_scalar, special=_EXPONENTS),
    native("aten::addcmul", addcmul),
    native("aten::addcdiv", addcdiv),
    native("aten::ldexp.Tensor", _ldexp),
    native("aten::nextafter", _nextafter),
    native("aten::complex", _complex),
    native("aten::polar", _polar),
)
