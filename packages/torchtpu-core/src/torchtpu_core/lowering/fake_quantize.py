# SPDX-License-Identifier: Apache-2.0
"""Fake quantisation, as quantisation-aware training rounds its values and learns its ranges.

A value is rounded to a whole multiple of a scale about a zero point and kept within the
quantised range; the mask tells which values were within it, for the gradient passes there only.
A NaN counts as the least of the range, as on the CPU.

Legend: C channels, the size of the dimension `axis`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, composite, native

_F32 = np.dtype(np.float32)
#: A scale is at least this, so that its inverse is a number.
_LEAST_SCALE = np.float32(6.1e-5)


def _lane(parameter: jax.Array, x: jax.Array, axis: int | None) -> jax.Array:
    """A parameter of one element, or of each channel, that broadcasts against `x`."""
    if axis is None:
        return parameter.reshape(-1)[:1].reshape(())
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


class _Steps:
    """Values in steps of the scale.

    Attributes:
        whole: the steps, rounded, before the range is kept.
        within: where the range holds them.
        value: what the kept steps stand for.
    """

    def __init__(
        self, x: jax.Array, scale: jax.Array, zero: jax.Array, low: int, high: int
    ) -> None:
        compute = np.promote_types(dtypes.opmath(x.dtype), _F32)
        scale = scale.astype(_F32)
        inverse = np.float32(1) / scale
        moved = x.astype(compute) * inverse.astype(compute)
        if dtypes.is_floating(zero.dtype):
            self.whole = lax.round(zero.astype(compute) + moved, lax.RoundingMethod.TO_NEAREST_EVEN)
        else:
            rounded = lax.round(moved, lax.RoundingMethod.TO_NEAREST_EVEN)
            self.whole = zero.astype(compute) + rounded
        self.within = (self.whole >= low) & (self.whole <= high)
        kept = jnp.clip(jnp.where(jnp.isnan(self.whole), low, self.whole), low, high)
        self.value = (kept - zero.astype(compute)) * scale.astype(compute)


def _rounded(
    x: jax.Array, scale: jax.Array, zero: jax.Array, low: int, high: int
) -> tuple[jax.Array, jax.Array]:
    steps = _Steps(x, scale, zero, low, high)
    return steps.value.astype(x.dtype), steps.within


def _per_tensor(
    self: jax.Array, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> tuple[jax.Array, jax.Array]:
    zero = cast(zero_point, np.dtype(np.int32))
    return _rounded(self, cast(scale, _F32), zero, quant_min, quant_max)


def _per_tensor_of_tensors(
    self: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array,
    fake_quant_enabled: jax.Array,
    quant_min: int,
    quant_max: int,
) -> tuple[jax.Array, jax.Array]:
    scale, zero = _lane(scale, self, None), _lane(zero_point, self, None).astype(np.int32)
    value, within = _rounded(self, scale, zero, quant_min, quant_max)
    on = _lane(fake_quant_enabled, self, None) != 0
    return jnp.where(on, value, self), within | ~on


def _per_channel(
    self: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array,
    axis: int | None,
    quant_min: int,
    quant_max: int,
) -> tuple[jax.Array, jax.Array]:
    scale, zero = _lane(scale, self, axis), _lane(zero_point, self, axis)
    return _rounded(self, scale, zero, quant_min, quant_max)


def _nearest_point(zero_point: jax.Array, low: int, high: int) -> jax.Array:
    """A learned zero point as a whole number within the range."""
    nearest = lax.round(zero_point.astype(_F32), lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.clip(nearest, low, high).astype(np.int32)


def _learned(
    self: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array,
    axis: int | None,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> jax.Array:
    zero = _nearest_point(zero_point, quant_min, quant_max)
    return _per_channel(self, scale, zero, axis, quant_min, quant_max)[0]


def _learned_gradient(
    grad: jax.Array,
    x: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array,
    axis: int | None,
    low: int,
    high: int,
    factor: float = 1.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    width = _lane(scale, x, axis).astype(_F32)
    zero = _lane(_nearest_point(zero_point, low, high), x, axis)
    steps = _Steps(x, width, zero, low, high)
    slope, x_wide = grad.astype(steps.value.dtype), x.astype(steps.value.dtype)
    ends = jnp.where(steps.whole < low, low - zero, high - zero)
    of_scale = jnp.where(steps.within, (steps.value - x_wide) / width, ends)
    of_zero = jnp.where(steps.within, 0, -width)
    over = tuple(d for d in range(x.ndim) if axis is None or d != axis % x.ndim)
    sums = [jnp.sum(slope * part * factor, axis=over).reshape(-1) for part in (of_scale, of_zero)]
    return (
        jnp.where(steps.within, grad, 0),
        sums[0].astype(scale.dtype),
        sums[1].astype(zero_point.dtype),
    )


def _of_all(by_channel: Callable[..., Any], axis_at: int) -> Callable[..., Any]:
    """The same with one scale and one zero point for all; `axis_at` is where the axis stands."""

    def run(*operands: Any) -> Any:
        return by_channel(*operands[:axis_at], None, *operands[axis_at:])

    return run


def _parameters(
    least: jax.Array, most: jax.Array, low: int, high: int, symmetric: bool
) -> tuple[jax.Array, jax.Array]:
    """Scale and zero point by which a range of values fills the quantised one."""
    f32, f64 = np.float32, np.float64
    both = (least < 0) & (most > 0) & symmetric
    half = (high - low) // 2
    widest = jnp.maximum(abs(least / f32(-half - 1)), abs(most / f32(max(half, 1)))).astype(f64)
    least = jnp.where(both, (widest * (-half - 1)).astype(f32), least)
    most = jnp.where(both, (widest * half).astype(f32), most)
    least, most = jnp.minimum(least, 0), jnp.maximum(most, 0)
    scale = (most.astype(f64) - least.astype(f64)) / f64(high - low)
    narrow = scale.astype(f32)
    scale = jnp.where((narrow == 0) | jnp.isinf(f32(1) / narrow), 0.1, scale)
    small = scale < _LEAST_SCALE
    grown, room = _LEAST_SCALE / scale.astype(f32), _LEAST_SCALE * f32(high - low)
    wider = jnp.where(most == 0, -room, jnp.where(least == 0, least, least * grown))
    higher = jnp.where(least == 0, room, jnp.where(most == 0, most, most * grown))
    least, most = jnp.where(small, wider, least), jnp.where(small, higher, most)
    scale = jnp.where(small, f64(_LEAST_SCALE), scale)
    down, up = least.astype(f64) / scale, most.astype(f64) / scale
    is_down_surer = abs(low) + abs(down) < abs(high) + abs(up)
    zero = jnp.where(is_down_surer, low - down, high - up)
    middle = (least < 0) & (most > 0) & symmetric
    zero = jnp.where(middle, f64(low + high) / 2, zero)
    zero = jnp.clip(lax.round(zero, lax.RoundingMethod.TO_NEAREST_EVEN), low, high)
    return scale.astype(f32), zero.astype(np.int32)


def _observed(
    self: jax.Array,
    observer_on: jax.Array,
    fake_quant_on: jax.Array,
    running_min: jax.Array,
    running_max: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array,
    averaging_const: Operand,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[jax.Array, ...]:
    """Values and mask, then the new running least and most, scale and zero point."""
    axis = ch_axis % self.ndim if per_row_fake_quant else None
    over = tuple(d for d in range(self.ndim) if d != axis)
    share = cast(averaging_const, _F32)
    watching = observer_on.reshape(-1)[0] != 0
    ranges = []
    for running, now in ((running_min, jnp.min(self, over)), (running_max, jnp.max(self, over))):
        current = now.astype(_F32).reshape(running.shape)
        moved = running + share * (current - running)
        ranges.append(jnp.where(watching, jnp.where(jnp.isinf(running), current, moved), running))
    found = _parameters(ranges[0], ranges[1], quant_min, quant_max, symmetric_quant)
    new_scale, new_zero = (
        jnp.where(watching, new.astype(old.dtype).reshape(old.shape), old)
        for new, old in zip(found, (scale, zero_point), strict=True)
    )
    lanes = _lane(new_scale, self, axis), _lane(new_zero, self, axis).astype(np.int32)
    value, within = _rounded(self, *lanes, quant_min, quant_max)
    on = fake_quant_on.reshape(-1)[0] != 0
    return jnp.where(on, value, self), within | ~on, *ranges, new_scale, new_zero


def _observed_in_place(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:
    """Makes room for the channels at the first call, as PyTorch's observers expect."""
    state = (running_min, running_max, scale, zero_point)
    if per_row_fake_quant and running_min.numel() == 0:
        channels = self.shape[ch_axis]
        for tensor, start in zip(state, (float("inf"), -float("inf"), 1, 0), strict=True):
            tensor.resize_(channels).fill_(start)
    value, within, *new = torch.ops.aten._fused_moving_avg_obs_fq_helper_functional(
        self,
        observer_on,
        fake_quant_on,
        *state,
        averaging_const,
        quant_min,
        quant_max,
        ch_axis,
        per_row_fake_quant,
        symmetric_quant,
    )
    for old, now in zip(state, new, strict=True):
        old.copy_(now)
    return value, within


TABLE: tuple[Lowering, ...] = (
    native(
        "aten::fake_quantize_per_tensor_affine_cachemask",
        _per_tensor,
        runtime={"scale", "zero_point"},
    ),
    native(
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", _per_tensor_of_tensors
    ),
    native("aten::fake_quantize_per_channel_affine_cachemask", _per_channel),
    native("aten::_fake_quantize_learnable_per_tensor_affine", _of_all(_learned, 3)),
    native(
        "aten::_fake_quantize_learnable_per_tensor_affine_backward", _of_all(_learned_gradient, 4)
    ),
    native("aten::_fake_quantize_learnable_per_channel_affine", _learned),
    native("aten::_fake_quantize_learnable_per_channel_affine_backward", _learned_gradient),
    native(
        "aten::_fused_moving_avg_obs_fq_helper_functional", _observed, runtime={"averaging_const"}
    ),
    composite("aten::_fused_moving_avg_obs_fq_helper", _observed_in_place),
)
