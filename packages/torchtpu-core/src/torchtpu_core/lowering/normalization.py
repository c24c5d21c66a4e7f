# SPDX-License-Identifier: Apache-2.0
"""Layer, group, RMS and weight normalisation, forward and backward.

Statistics are computed in float32 for 16-bit floats, in two passes (the mean first),
so that a large mean costs no precision. Batch normalisation is in ``batch_norm.py``.

Legend: N batch, C channels, G groups, S the flattened spatial dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes, few_images
from torchtpu_core.lowering.extrema import amax, amin
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

#: Compiled as constants; any other epsilon is a run-time operand.
USUAL_EPS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
Gradients: TypeAlias = "tuple[jax.Array | None, ...]"


def moments(
    x: jax.Array, axes: tuple[int, ...], eps: Operand
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean, variance and reciprocal deviation of `x` over `axes`, which stay with length 1."""
    count = math.prod(x.shape[a] for a in axes)
    mean = jnp.sum(x, axis=axes, keepdims=True) / x.dtype.type(count or 1)
    variance = jnp.sum(lax.square(x - mean), axis=axes, keepdims=True) / x.dtype.type(count or 1)
    return mean, variance, lax.rsqrt(variance + cast(eps, x.dtype))


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def _cast(values: Iterable[jax.Array | None], dtype: np.dtype) -> Gradients:
    return tuple(v if v is None else v.astype(dtype) for v in values)


def native_layer_norm(
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: Operand,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`(*outer, *normalized_shape)` -> the same, and mean and rstd `(*outer, 1, ...)`."""
    x = _compute(input)
    mean, _, rstd = moments(x, _inner(input, normalized_shape), eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * weight.astype(x.dtype)
    if bias is not None:
        out = out + bias.astype(x.dtype)
    return out.astype(input.dtype), mean, rstd


def _inner(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The trailing dimensions that are normalised."""
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _outer(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape)))


def native_layer_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    output_mask: Sequence[bool],
) -> Gradients:
    grad, x = _compute(grad_out), _compute(input)
    inner, outer = _inner(x, normalized_shape), _outer(x, normalized_shape)
    rstd = rstd.astype(x.dtype)
    hat = (x - mean.astype(x.dtype)) * rstd
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        g = grad if weight is None else grad * weight.astype(x.dtype)
        d_input = rstd * (g - _mean(g, inner) - hat * _mean(g * hat, inner))
    if output_mask[1] and weight is not None:
        d_weight = jnp.sum(grad * hat, axis=outer)
    if output_mask[2] and bias is not None:
        d_bias = jnp.sum(grad, axis=outer)
    return _cast((d_input, d_weight, d_bias), input.dtype)


def _mean(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The mean over `axes`, kept with length 1; of nothing, zero."""
    count = math.prod(x.shape[a] for a in axes)
    return jnp.sum(x, axis=axes, keepdims=True) / x.dtype.type(count or 1)


def native_group_norm(
    input: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Operand,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`(N, C, *S)` -> the same, and mean and rstd `(N, G)`."""
    x = _compute(few_images.whole(input)).reshape((N, group, C // group, HxW))
    mean, _, rstd = moments(x, (2, 3), eps)
    out = (x - mean) * rstd
    lane = (1, group, C // group, 1)
    if weight is not None:
        out = out * weight.astype(x.dtype).reshape(lane)
    if bias is not None:
        out = out + bias.astype(x.dtype).reshape(lane)
    statistics = _cast((s.reshape((N, group)) for s in (mean, rstd)), input.dtype)  # type: ignore[arg-type]
    return out.reshape(input.shape).astype(input.dtype), *statistics  # type: ignore[return-value]


def native_group_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    lane = (N, group, C // group, HxW)
    grad = _compute(grad_out).reshape(lane)
    x = _compute(few_images.whole(input)).reshape(lane)
    rstd = rstd.astype(x.dtype).reshape((N, group, 1, 1))
    hat = (x - mean.astype(x.dtype).reshape((N, group, 1, 1))) * rstd
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        g = grad
        if weight is not None:
            g = grad * weight.astype(x.dtype).reshape((1, group, C // group, 1))
        d_input = rstd * (g - _mean(g, (2, 3)) - hat * _mean(g * hat, (2, 3)))
        d_input = d_input.reshape(input.shape)
    if output_mask[1] and weight is not None:
        d_weight = jnp.sum(grad * hat, axis=(0, 3)).reshape((C,))
    if output_mask[2]:
        d_bias = jnp.sum(grad, axis=(0, 3)).reshape((C,))
    return _cast((d_input, d_weight, d_bias), input.dtype)


def fused_rms_norm(
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    eps: float | None,
) -> tuple[jax.Array, jax.Array]:
    """`(*outer, *normalized_shape)` -> the same, and rstd `(*outer, 1, ...)`."""
    x = _compute(input)
    small = x.dtype.type(jnp.finfo(x.dtype).eps if eps is None else eps)
    rstd = lax.rsqrt(_mean(lax.square(x), _inner(x, normalized_shape)) + small)
    out = x * rstd
    if weight is not None:
        out = out * weight.astype(x.dtype)
    return out.astype(input.dtype), rstd


def fused_rms_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    rstd: jax.Array,
    weight: jax.Array | None,
    output_mask: Sequence[bool],
) -> Gradients:
    grad, x = _compute(grad_out), _compute(input)
    rstd = rstd.astype(x.dtype)
    hat = x * rstd
    d_input = d_weight = None
    if output_mask[0]:
        g = grad if weight is None else grad * weight.astype(x.dtype)
        d_input = rstd * (g - hat * _mean(g * hat, _inner(x, normalized_shape)))
    if output_mask[1] and weight is not None:
        d_weight = jnp.sum(grad * hat, axis=_outer(x, normalized_shape))
    return _cast((d_input, d_weight), input.dtype)


def rms_norm(
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    eps: float | None = None,
) -> jax.Array:
    return fused_rms_norm(input, normalized_shape, weight, eps)[0]


def _others(x: jax.Array, dim: int) -> tuple[int, ...]:
    """All dimensions of `x` but `dim`."""
    return tuple(i for i in range(x.ndim) if i != dim % x.ndim)


def weight_norm_interface(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """``v * g / norm(v)`` and the norms, float32 for 16-bit floats; norms over all but `dim`."""
    x = _compute(v)
    norms = lax.sqrt(jnp.sum(lax.square(x), axis=_others(x, dim), keepdims=True))
    return (x * (_compute(g) / norms)).astype(v.dtype), norms


def weight_norm_interface_backward(
    grad_w: jax.Array, saved_v: jax.Array, saved_g: jax.Array, saved_norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    grad, v, g = _compute(grad_w), _compute(saved_v), _compute(saved_g)
    norms = saved_norms.astype(v.dtype)
    along = jnp.sum(grad * v, axis=_others(v, dim), keepdims=True)
    d_v = g * (grad / norms - v * (along / (norms * norms * norms)))
    return d_v.astype(saved_v.dtype), (along / norms).astype(saved_g.dtype)


def vector_norm(x: jax.Array, p: float, axes: tuple[int, ...]) -> jax.Array:
    """The p-norm over `axes`, which stay with length 1; p may be 0 or infinite."""
    size = lax.abs(x)
    if p == 0:
        return jnp.sum((size != 0).astype(x.dtype), axis=axes, keepdims=True)
    if p == math.inf:
        return amax(size, axes, keepdim=True) if axes else size
    if p == -math.inf:
        return amin(size, axes, keepdim=True) if axes else size
    if p == 1:
        return jnp.sum(size, axis=axes, keepdims=True)
    if p == 2:
        return lax.sqrt(jnp.sum(size * size, axis=axes, keepdims=True))
    powers = jnp.sum(lax.pow(size, x.dtype.type(p)), axis=axes, keepdims=True)
    return lax.pow(powers, x.dtype.type(1.0 / p))


def renorm(self: jax.Array, p: float, dim: int, maxnorm: Operand) -> jax.Array:
    """Slices along `dim` whose p-norm exceeds `maxnorm` are scaled down to it."""
    x = _compute(self)
    norms = vector_norm(x, p, _others(x, dim))
    limit = cast(maxnorm, norms.dtype)
    factor = jnp.where(norms > limit, limit / (norms + norms.dtype.type(1e-7)), 1)
    return (x * factor.astype(x.dtype)).astype(self.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::native_layer_norm", native_layer_norm, runtime=("eps",), special=USUAL_EPS),
    native("aten::native_layer_norm_backward", native_layer_norm_backward),
    native("aten::native_group_norm", native_group_norm, runtime=("eps",), special=USUAL_EPS),
    native("aten::native_group_norm_backward", native_group_norm_backward),
    native("aten::_fused_rms_norm", fused_rms_norm),
    native("aten::_fused_rms_norm_backward", fused_rms_norm_backward),
    native("aten::rms_norm", rms_norm),
    native("aten::_weight_norm_interface", weight_norm_interface),
    native("aten::_weight_norm_interface_backward", weight_norm_interface_backward),
    native("aten::renorm", renorm, static={"p"}),
)
