# SPDX-License-Identifier: Apache-2.0
"""Activation functions; their backward passes are in ``activation_gradients.py``."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering.comparison import clamp
from torchtpu_core.lowering.elementwise import constant, elementwise, isnan, rows, selecting
from torchtpu_core.lowering.promotion import Operand, cast, promote
from torchtpu_core.lowering.table import Lowering, native

#: Constants of GELU: ``erf(x * SQRT_HALF)``, and the tanh approximation's.
SQRT_HALF = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBIC = 0.044715


def _relu(x: jax.Array) -> jax.Array:
    return lax.max(x, jnp.zeros_like(x))


def _silu(x: jax.Array) -> jax.Array:
    return x * lax.logistic(x)


def log1p_exp(x: jax.Array) -> jax.Array:
    """``log(1 + exp(x))`` without overflow."""
    return lax.max(x, constant(0, x)) + lax.log1p(lax.exp(-lax.abs(x)))


def _mish(x: jax.Array) -> jax.Array:
    return x * lax.tanh(log1p_exp(x))


def _sixth(x: jax.Array) -> jax.Array:
    """``relu6(x + 3) / 6``, NaN kept."""
    three, six = constant(3, x), constant(6, x)
    return lax.min(lax.max(x + three, constant(0, x)), six) / six


def _hardswish(x: jax.Array) -> jax.Array:
    return x * _sixth(x)


def _gelu(self: jax.Array, *, approximate: str = "none") -> jax.Array:
    (x,), result = promote(self)
    half, one = constant(0.5, x), constant(1, x)
    if approximate == "tanh":
        inner = constant(TANH_SCALE, x) * (x + constant(TANH_CUBIC, x) * (x * x * x))
        return cast(half * x * (one + lax.tanh(inner)), result)
    return cast(half * x * (one + lax.erf(x * constant(SQRT_HALF, x))), result)


def _threshold(self: jax.Array, threshold: Operand, value: Operand) -> jax.Array:
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, self.dtype), self)


def _hardtanh(self: jax.Array, min_val: Operand = -1, max_val: Operand = 1) -> jax.Array:
    return cast(clamp(self, cast(min_val, self.dtype), cast(max_val, self.dtype)), self.dtype)


def _leaky_relu(self: jax.Array, negative_slope: Operand = 0.01) -> jax.Array:
    (x,), result = promote(self)
    slope = cast(negative_slope, x.dtype)
    return cast(jnp.where(x > constant(0, x), x, x * slope), result)


def _elu(
    self: jax.Array, alpha: Operand = 1, scale: Operand = 1, input_scale: Operand = 1
) -> jax.Array:
    (x,), result = promote(self)
    alpha, scale, input_scale = (cast(v, x.dtype) for v in (alpha, scale, input_scale))
    negative = lax.expm1(x * input_scale) * (alpha * scale)
    return cast(jnp.where(x <= constant(0, x), negative, x * scale), result)


def _celu(self: jax.Array, alpha: Operand = 1.0) -> jax.Array:
    (x,), result = promote(self)
    size = cast(alpha, x.dtype)
    return cast(jnp.where(x <= constant(0, x), size * lax.expm1(x / size), x), result)


def _softplus(self: jax.Array, beta: Operand = 1, threshold: Operand = 20) -> jax.Array:
    (x,), result = promote(self)
    beta, threshold = cast(beta, x.dtype), cast(threshold, x.dtype)
    scaled = x * beta
    return cast(jnp.where(scaled > threshold, x, lax.log1p(lax.exp(scaled)) / beta), result)


def _softshrink(self: jax.Array, lambd: Operand = 0.5) -> jax.Array:
    (x,), result = promote(self)
    edge, zero = cast(lambd, x.dtype), constant(0, x)
    shrunk = jnp.where(x > edge, x - edge, jnp.where(x < -edge, x + edge, zero))
    return cast(jnp.where(isnan(x), x, shrunk), result)


def _hardshrink(self: jax.Array, lambd: Operand = 0.5) -> jax.Array:
    edge = cast(lambd, self.dtype)
    return jnp.where((self >= -edge) & (self <= edge), constant(0, self), self)


def _log_sigmoid_forward(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The output and CPU PyTorch's buffer ``exp(-|x|)``."""
    (x,), result = promote(self)
    buffer = lax.exp(-lax.abs(x))
    output = lax.min(x, constant(0, x)) - lax.log1p(buffer)
    return cast(output, result), cast(buffer, result)


def _logit(self: jax.Array, eps: float | None = None) -> jax.Array:
    (x,), result = promote(self, floating=True)
    if eps is not None:  # the lower bound wins where an `eps` above 1/2 crosses them
        low, high = constant(eps, x), constant(1 - eps, x)
        x = jnp.where(x < low, low, lax.min(x, high))
    return cast(lax.log(x / (constant(1, x) - x)), result)


def _prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > constant(0, x), x, weight * x)


def halves(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """The first and second half of `x` along `dim`."""
    half = x.shape[dim] // 2
    return (
        lax.slice_in_dim(x, 0, half, axis=dim),
        lax.slice_in_dim(x, half, 2 * half, axis=dim),
    )


def _glu(self: jax.Array, dim: int = -1) -> jax.Array:
    (x,), result = promote(self)
    value, gate = halves(x, dim)
    return cast(value * lax.logistic(gate), result)


_FORWARD: tuple[tuple[str, Callable[..., jax.Array]], ...] = (
    ("silu", _silu),
    ("mish", _mish),
    ("hardsigmoid", _sixth),
    ("hardswish", _hardswish),
    ("_prelu_kernel", _prelu),
)


TABLE: tuple[Lowering, ...] = (
    *rows(_FORWARD, elementwise),
    *rows((("relu", _relu),), selecting),
    native("aten::gelu", _gelu),
    native("aten::threshold", _threshold),
    native("aten::hardtanh", _hardtanh),
    native("aten::leaky_relu", _leaky_relu),
    native("aten::elu", _elu),
    native("aten::celu", _celu),
    native("aten::softplus", _softplus),
    native("aten::softshrink", _softshrink),
    native("aten::hardshrink", _hardshrink),
    native("aten::log_sigmoid_forward", _log_sigmoid_forward),
    native("aten::logit", _logit),
    native("aten::glu", _glu),
)
