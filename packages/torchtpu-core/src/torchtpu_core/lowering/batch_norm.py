# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation, forward and backward, and the pieces of its synchronised form.

All variants share one core. `native_batch_norm` writes its running statistics although
its schema does not say so: the new values follow the returns.

Legend: N batch, C channels (dimension 1), S spatial; statistics are `(C,)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.normalization import USUAL_EPS, Gradients, moments
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

Maybe: TypeAlias = "jax.Array | None"


def _axes(x: jax.Array) -> tuple[int, ...]:
    """All dimensions but the channels."""
    return (0, *range(2, x.ndim))


def _lane(values: jax.Array, x: jax.Array) -> jax.Array:
    """`(C,)` -> `(1, C, 1, ...)` in the dtype of `x`."""
    return values.astype(x.dtype).reshape((1, -1) + (1,) * (x.ndim - 2))


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def _count(x: jax.Array) -> int:
    """How many values one channel has."""
    return math.prod(x.shape[a] for a in _axes(x))


def _affine(hat: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    if weight is not None:
        hat = hat * _lane(weight, hat)
    if bias is not None:
        hat = hat + _lane(bias, hat)
    return hat


def _moved(running: Maybe, value: jax.Array, momentum: Operand) -> Maybe:
    """The running statistic after one step towards `value`."""
    if running is None:
        return None
    rate = cast(momentum, value.dtype)
    old = running.astype(value.dtype)
    return (rate * value + (value.dtype.type(1) - rate) * old).astype(running.dtype)


def _update(
    mean: jax.Array,
    variance: jax.Array,
    count: int,
    running: tuple[Maybe, Maybe],
    momentum: Operand,
) -> tuple[Maybe, Maybe]:
    unbiased = variance * variance.dtype.type(count / max(count - 1, 1))
    return _moved(running[0], mean, momentum), _moved(running[1], unbiased, momentum)


def _train(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running: tuple[Maybe, Maybe],
    momentum: Operand,
    eps: Operand,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[Maybe, Maybe]]:
    """(output, mean, invstd) from the batch, and the new running statistics."""
    x = _compute(input)
    mean, variance, invstd = moments(x, _axes(x), eps)
    out = _affine((x - mean) * invstd, weight, bias).astype(input.dtype)
    flat = [s.reshape((-1,)) for s in (mean, variance, invstd)]
    new = _update(flat[0], flat[1], _count(x), running, momentum)
    return (out, flat[0], flat[2]), new


def _evaluate(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    eps: Operand,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(output, mean, invstd) from the running statistics."""
    x = _compute(input)
    mean, invstd = running_mean.astype(x.dtype), _invstd(running_var.astype(x.dtype), eps)
    out = _affine((x - _lane(mean, x)) * _lane(invstd, x), weight, bias)
    return out.astype(input.dtype), mean, invstd


def _invstd(variance: jax.Array, eps: Operand) -> jax.Array:
    return lax.rsqrt(variance + cast(eps, variance.dtype))


def native_batch_norm(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    """Output, mean, invstd and, when training, the new running statistics."""
    if training or running_mean is None or running_var is None:
        running = (running_mean, running_var)
        results, new = _train(input, weight, bias, running, momentum, eps)
        return (*results, *new) if training else results
    return _evaluate(input, weight, bias, running_mean, running_var, eps)


def native_batch_norm_legit_functional(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    """As `native_batch_norm`; the running statistics are always returned."""
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return results if training else (*results, running_mean, running_var)


def native_batch_norm_legit_no_stats(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    return _train(input, weight, bias, (None, None), momentum, eps)[0]


def native_batch_norm_legit_no_training(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    return _evaluate(input, weight, bias, running_mean, running_var, eps)


def _reserve() -> jax.Array:
    """The workspace cuDNN needs and XLA does not."""
    return jnp.zeros((0,), np.uint8)


def batch_norm_with_update(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    """Output, mean, invstd, an empty reserve and the new running statistics."""
    running = (running_mean, running_var)
    results, new = _train(input, weight, bias, running, momentum, eps)
    return (*results, _reserve(), *new)


def batch_norm_no_update(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: Operand,
    eps: Operand,
) -> tuple[Any, ...]:
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )
    return (*results, _reserve())


def native_batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: Operand,
    output_mask: Sequence[bool],
    *_: object,
) -> Gradients:
    """Gradients for the input, weight and bias."""
    grad, x = _compute(grad_out), _compute(input)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, invstd = _lane(save_mean, x), _lane(save_invstd, x)
    else:
        assert running_mean is not None and running_var is not None
        mean, invstd = _lane(running_mean, x), _lane(_invstd(_compute(running_var), eps), x)
    hat = (x - mean) * invstd
    total = jnp.sum(grad, axis=_axes(x))
    along = jnp.sum(grad * hat, axis=_axes(x))
    d_input = d_weight = d_bias = None
    if output_mask[0]:
        scale = invstd if weight is None else invstd * _lane(weight, x)
        d_input = grad
        if train:
            share = x.dtype.type(1 / max(_count(x), 1))
            d_input = grad - _lane(total * share, x) - hat * _lane(along * share, x)
        d_input = (d_input * scale).astype(input.dtype)
    statistics = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        d_weight = along.astype(statistics)
    if output_mask[2]:
        d_bias = total.astype(statistics)
    return d_input, d_weight, d_bias


def batch_norm_stats(input: jax.Array, eps: Operand) -> tuple[jax.Array, jax.Array]:
    """`(N, C, *S)` -> mean and invstd `(C,)` of this rank's share of the batch."""
    x = _compute(input)
    mean, _, invstd = moments(x, _axes(x), eps)
    return mean.reshape((-1,)), invstd.reshape((-1,))


def batch_norm_elemt(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    mean: jax.Array,
    invstd: jax.Array,
    eps: Operand,
) -> jax.Array:
    x = _compute(input)
    return _affine((x - _lane(mean, x)) * _lane(invstd, x), weight, bias).astype(input.dtype)


def batch_norm_gather_stats_with_counts(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: Operand,
    eps: Operand,
    counts: jax.Array,
) -> tuple[Any, ...]:
    """Joins `(R, C)` statistics of R ranks with `(R,)` counts; then the new running ones."""
    mean, invstd = _compute(mean), _compute(invstd)
    weights = counts.astype(mean.dtype).reshape((-1, 1))
    total = jnp.sum(weights)
    joint = jnp.sum(mean * weights, axis=0) / total
    variances = 1 / (invstd * invstd) - cast(eps, mean.dtype)
    squares = jnp.sum((variances + lax.square(mean - joint)) * weights, axis=0)
    unbiased = squares / (total - mean.dtype.type(1))
    new = _moved(running_mean, joint, momentum), _moved(running_var, unbiased, momentum)
    return (joint, _invstd(squares / total, eps), *new)


def batch_norm_gather_stats(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: Operand,
    eps: Operand,
    count: int,
) -> tuple[Any, ...]:
    counts = jnp.full((mean.shape[0],), count, mean.dtype)
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def batch_norm_backward_reduce(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Maybe,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Gradients:
    """This rank's sums of dy and of dy * (x - mean), and its weight and bias gradients."""
    grad, x = _compute(grad_out), _compute(input)
    sum_dy = jnp.sum(grad, axis=_axes(x))
    sum_dy_xmu = jnp.sum(grad * (x - _lane(mean, x)), axis=_axes(x))
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd.astype(x.dtype)).astype(dtype) if weight_g else None,
        sum_dy.astype(dtype) if bias_g else None,
    )


def batch_norm_backward_elemt(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Maybe,
    sum_dy: jax.Array,
    sum_dy_xmu: jax.Array,
    count: jax.Array,
) -> jax.Array:
    grad, x = _compute(grad_out), _compute(input)
    inverse = _lane(invstd, x)
    share = x.dtype.type(1) / jnp.sum(count.astype(x.dtype))
    hat = (x - _lane(mean, x)) * lax.square(inverse) * (_lane(sum_dy_xmu, x) * share)
    scale = inverse if weight is None else inverse * _lane(weight, x)
    return ((grad - _lane(sum_dy, x) * share - hat) * scale).astype(input.dtype)


def batch_norm_update_stats(
    input: jax.Array, running_mean: Maybe, running_var: Maybe, momentum: Operand
) -> tuple[Any, ...]:
    """Mean and biased variance of the batch, then the new running statistics."""
    x = _compute(input)
    mean, variance = (s.reshape((-1,)) for s in moments(x, _axes(x), 0.0)[:2])
    running = (running_mean, running_var)
    return (mean, variance, *_update(mean, variance, _count(x), running, momentum))


_RUNNING = ("running_mean", "running_var")


def _row(
    overload: str, function: Any, *, writes: bool = False, when: str | None = None
) -> Lowering:
    """A row whose momentum is a run-time operand: a cumulative average changes it each step."""
    return native(
        f"aten::{overload}",
        function,
        runtime={"momentum", "eps"},
        special=USUAL_EPS,
        mutates=_RUNNING if writes else (),
        mutates_if=when,
    )


TABLE: tuple[Lowering, ...] = (
    _row("native_batch_norm", native_batch_norm, writes=True, when="training"),
    _row("_native_batch_norm_legit", native_batch_norm, writes=True, when="training"),
    _row("_native_batch_norm_legit.no_stats", native_batch_norm_legit_no_stats),
    _row("_native_batch_norm_legit_functional", native_batch_norm_legit_functional),
    _row("_native_batch_norm_legit_no_training", native_batch_norm_legit_no_training),
    _row("_batch_norm_with_update", batch_norm_with_update, writes=True),
    _row("_batch_norm_with_update_functional", batch_norm_with_update),
    _row("_batch_norm_no_update", batch_norm_no_update),
    _row("batch_norm_gather_stats", batch_norm_gather_stats, writes=True),
    _row("batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts, writes=True),
    _row("batch_norm_update_stats", batch_norm_update_stats, writes=True),
    native("aten::native_batch_norm_backward", native_batch_norm_backward),
    native("aten::batch_norm_backward", native_batch_norm_backward),
    native("aten::batch_norm_stats", batch_norm_stats),
    native("aten::batch_norm_elemt", batch_norm_elemt),
    native("aten::batch_norm_backward_reduce", batch_norm_backward_reduce),
    native("aten::batch_norm_backward_elemt", batch_norm_backward_elemt),
)
