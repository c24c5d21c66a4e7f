# SPDX-License-Identifier: Apache-2.0
"""Backward passes of the activation functions.

They take the incoming gradient first, as autograd calls them, and compute in the
promoted dtype of gradient and input (float32 for 16-bit floats).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.activations import (
    SQRT_HALF,
    TANH_CUBIC,
    TANH_SCALE,
    halves,
    log1p_exp,
)
from torchtpu_core.lowering.elementwise import constant, elementwise, rows
from torchtpu_core.lowering.promotion import Operand, cast, promote, result_type
from torchtpu_core.lowering.table import Lowering, native


def _gelu_backward(
    grad_output: jax.Array, self: jax.Array, *, approximate: str = "none"
) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    half, one = constant(0.5, x), constant(1, x)
    if approximate == "tanh":
        scale, cubic = constant(TANH_SCALE, x), constant(TANH_CUBIC, x)
        tanh = lax.tanh(scale * (x + cubic * (x * x * x)))
        slope = scale * (one + constant(3, x) * cubic * (x * x))
        derivative = half * (one + tanh) + half * x * (one - tanh * tanh) * slope
        return cast(grad * derivative, result)
    cdf = half * (one + lax.erf(x * constant(SQRT_HALF, x)))
    pdf = constant(1 / math.sqrt(2 * math.pi), x) * lax.exp(-half * (x * x))
    return cast(grad * (cdf + x * pdf), result)


def _silu_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    one, sigmoid = constant(1, x), lax.logistic(x)
    return grad * sigmoid * (one + x * (one - sigmoid))


def _mish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    one, tanh = constant(1, x), lax.tanh(log1p_exp(x))
    return grad * (tanh + x * lax.logistic(x) * (one - tanh * tanh))


def _hardsigmoid_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    three = constant(3, x)
    inside = (x > -three) & (x < three)
    return jnp.where(inside, grad * constant(1 / 6, x), constant(0, x))


def _hardswish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    three, zero = constant(3, x), constant(0, x)
    middle = grad * (x / three + constant(0.5, x))
    return jnp.where(x <= -three, zero, jnp.where(x < three, middle, grad))


def _sigmoid_backward(grad: jax.Array, output: jax.Array) -> jax.Array:
    output = jnp.conj(output)
    return grad * (constant(1, output) - output) * output


def _tanh_backward(grad: jax.Array, output: jax.Array) -> jax.Array:
    output = jnp.conj(output)
    return grad * (constant(1, output) - output * output)


def _threshold_backward(grad_output: jax.Array, self: jax.Array, threshold: Operand) -> jax.Array:
    dtype = result_type(grad_output, self)
    grad, x = jnp.broadcast_arrays(cast(grad_output, dtype), cast(self, dtype))
    return jnp.where(x <= cast(threshold, dtype), constant(0, grad), grad)


def _hardtanh_backward(
    grad_output: jax.Array, self: jax.Array, min_val: Operand, max_val: Operand
) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    outside = (x <= cast(min_val, x.dtype)) | (x >= cast(max_val, x.dtype))
    return cast(jnp.where(outside, constant(0, grad), grad), result)


def _leaky_relu_backward(
    grad_output: jax.Array, self: jax.Array, negative_slope: Operand, self_is_result: bool
) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    slope = cast(negative_slope, x.dtype)
    return cast(jnp.where(x > constant(0, x), grad, grad * slope), result)


def _elu_backward(
    grad_output: jax.Array,
    alpha: Operand,
    scale: Operand,
    input_scale: Operand,
    is_result: bool,
    self_or_result: jax.Array,
) -> jax.Array:
    (grad, x), result = promote(grad_output, self_or_result)
    alpha, scale, input_scale = (cast(v, x.dtype) for v in (alpha, scale, input_scale))
    if is_result:
        negative = grad * input_scale * (x + alpha * scale)
    else:
        negative = grad * input_scale * (alpha * scale) * lax.exp(x * input_scale)
    return cast(jnp.where(x <= constant(0, x), negative, grad * scale), result)


def _softplus_backward(
    grad_output: jax.Array, self: jax.Array, beta: Operand, threshold: Operand
) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    scaled = x * cast(beta, x.dtype)
    above = scaled > cast(threshold, x.dtype)
    return cast(jnp.where(above, grad, grad * lax.logistic(scaled)), result)


def _shrink_backward(grad_output: jax.Array, self: jax.Array, lambd: Operand) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    edge = cast(lambd, x.dtype)
    inside = (x >= -edge) & (x <= edge)
    return cast(jnp.where(inside, constant(0, grad), grad), result)


def _log_sigmoid_backward(grad_output: jax.Array, self: jax.Array, buffer: jax.Array) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    return cast(grad * lax.logistic(-x), result)


def _logit_backward(grad_output: jax.Array, self: jax.Array, eps: float | None = None) -> jax.Array:
    (grad, x), result = promote(grad_output, self)
    zero, one = constant(0, x), constant(1, x)
    slope = grad / (x * (one - x))
    if eps is None:
        outside, value = (x < zero) | (x > one), constant(math.nan, x)
    else:
        outside, value = (x < constant(eps, x)) | (x > constant(1 - eps, x)), zero
    return cast(jnp.where(outside, value, slope), result)


def _prelu_backward(
    grad_output: jax.Array, self: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of the input and of the broadcast weight."""
    (grad, x, slope), result = promote(grad_output, self, weight)
    positive, zero = x > constant(0, x), constant(0, x)
    to_input = jnp.where(positive, grad, slope * grad)
    to_weight = jnp.where(positive, zero, x * grad)
    return cast(to_input, result), cast(to_weight, result)


def _glu_backward(grad_output: jax.Array, self: jax.Array, dim: int) -> jax.Array:
    (x,), result = promote(self)
    grad = cast(grad_output, x.dtype)
    value, gate = halves(x, dim)
    sigmoid = lax.logistic(gate)
    to_value = grad * sigmoid
    to_gate = to_value * (constant(1, x) - sigmoid) * value
    return cast(lax.concatenate([to_value, to_gate], dim % x.ndim), result)


def _glu_jvp(glu: jax.Array, x: jax.Array, dx: jax.Array, dim: int) -> jax.Array:
    (glu_, x_, dx_), result = (cast(v, dtypes.opmath(x.dtype)) for v in (glu, x, dx)), x.dtype
    _, gate = halves(x_, dim)
    dvalue, dgate = halves(dx_, dim)
    sigmoid = lax.logistic(gate)
    return cast(dvalue * sigmoid + glu_ * (dgate - sigmoid * dgate), result)


def _rrelu_backward(
    grad_output: jax.Array,
    self: jax.Array,
    noise: jax.Array,
    lower: Operand,
    upper: Operand,
    training: bool,
    self_is_result: bool,
) -> jax.Array:
    (grad, x, slope), result = promote(grad_output, self, noise)
    low, high = cast(lower, x.dtype), cast(upper, x.dtype)
    if training:
        # PyTorch reads the noise only if the interval is not a point.
        wide = (high - low) > constant(1e-6, x)
        slope = jnp.where(wide, slope, (low + high) * constant(0.5, x))
        return cast(jnp.where(wide | (x <= constant(0, x)), grad * slope, grad), result)
    mean = (low + high) * constant(0.5, x)
    return cast(jnp.where(x > constant(0, x), grad, grad * mean), result)


_BACKWARD: tuple[tuple[str, Callable[..., jax.Array]], ...] = (
    ("silu_backward", _silu_backward),
    ("mish_backward", _mish_backward),
    ("hardsigmoid_backward", _hardsigmoid_backward),
    ("hardswish_backward", _hardswish_backward),
    ("sigmoid_backward", _sigmoid_backward),
    ("tanh_backward", _tanh_backward),
)

TABLE: tuple[Lowering, ...] = (
    *rows(_BACKWARD, elementwise),
    native("aten::gelu_backward", _gelu_backward),
    native("aten::threshold_backward", _threshold_backward),
    native("aten::hardtanh_backward", _hardtanh_backward),
    native("aten::leaky_relu_backward", _leaky_relu_backward),
    native("aten::elu_backward", _elu_backward),
    native("aten::softplus_backward", _softplus_backward),
    native("aten::softshrink_backward", _shrink_backward),
    native("aten::hardshrink_backward", _shrink_backward),
    native("aten::log_sigmoid_backward", _log_sigmoid_backward),
    native("aten::logit_backward", _logit_backward),
    native("aten::_prelu_kernel_backward", _prelu_backward),
    native("aten::glu_backward", _glu_backward),
    native("aten::glu_jvp", _glu_jvp),
    native("aten::rrelu_with_noise_backward", _rrelu_backward),
)
