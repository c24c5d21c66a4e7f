# SPDX-License-Identifier: Apache-2.0
"""Losses, forward and backward: pointwise ones from formulas, then the indexed ones.

16-bit floats are computed in float32. Reductions are PyTorch's numbers: 0 none, 1 mean,
2 sum. CTC and the distances have files of their own.

Legend: N batch, C classes, S the remaining dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

_NONE, _MEAN = 0, 1


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def reduced(loss: jax.Array, reduction: int) -> jax.Array:
    """`loss` as it is, its mean (NaN of nothing) or its sum."""
    if reduction == _NONE:
        return loss
    total = jnp.sum(loss)
    return total / loss.dtype.type(loss.size) if reduction == _MEAN else total


def _per_element(grad_output: jax.Array, count: int, reduction: int) -> jax.Array:
    """The gradient each element of the unreduced loss gets."""
    grad = _compute(grad_output)
    return grad / grad.dtype.type(max(count, 1)) if reduction == _MEAN else grad


def _pair(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, np.dtype]:
    """Both in the compute dtype, broadcast, and the dtype of the result."""
    result = jnp.promote_types(x.dtype, target.dtype)
    compute = dtypes.opmath(np.dtype(result))
    a, b = jnp.broadcast_arrays(x.astype(compute), target.astype(compute))
    return a, b, np.dtype(result)


def _square(d: jax.Array) -> jax.Array:
    return d * d


def _smooth_l1(d: jax.Array, beta: float) -> jax.Array:
    size, b = lax.abs(d), d.dtype.type(beta)
    if beta == 0:
        return size
    half = d.dtype.type(0.5)
    return jnp.where(size < b, half * d * d / b, size - half * b)


def _smooth_l1_slope(d: jax.Array, beta: float) -> jax.Array:
    b = d.dtype.type(beta)
    if beta == 0:
        return lax.sign(d)
    return jnp.where(d <= -b, d.dtype.type(-1), jnp.where(d >= b, d.dtype.type(1), d / b))


def _huber(d: jax.Array, delta: float) -> jax.Array:
    size, limit, half = lax.abs(d), d.dtype.type(delta), d.dtype.type(0.5)
    return jnp.where(size <= limit, half * d * d, limit * (size - half * limit))


def _huber_slope(d: jax.Array, delta: float) -> jax.Array:
    limit = d.dtype.type(delta)
    return jnp.where(d <= -limit, -limit, jnp.where(d >= limit, limit, d))


def _distance_loss(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A loss of the difference: `function(difference, *parameters)`."""

    def run(
        self: jax.Array, target: jax.Array, reduction: int = _MEAN, *parameters: float
    ) -> jax.Array:
        a, b, result = _pair(self, target)
        return reduced(function(a - b, *parameters), reduction).astype(result)

    return run


def _distance_gradient(slope: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The gradient of a loss of the difference: `slope(difference, *parameters)`."""

    def run(
        grad_output: jax.Array,
        self: jax.Array,
        target: jax.Array,
        reduction: int,
        *parameters: float,
    ) -> jax.Array:
        a, b, result = _pair(self, target)
        grad = _per_element(grad_output, a.size, reduction)
        return (slope(a - b, *parameters) * grad).astype(result)

    return run


def _with_beta(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Gives the loss's parameter the default 1, as ``beta`` and ``delta`` have."""

    def run(d: jax.Array, parameter: float = 1.0) -> jax.Array:
        return function(d, parameter)

    return run


def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = _MEAN) -> jax.Array:
    x, y, result = _pair(self, target)
    return reduced(lax.log1p(lax.exp(-y * x)), reduction).astype(result)


def soft_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y, result = _pair(self, target)
    grad = _per_element(grad_output, x.size, reduction)
    return (-y * lax.logistic(-y * x) * grad).astype(result)


def _in_unit(x: jax.Array) -> None:
    checks.require(
        (x >= 0) & (x <= 1), RuntimeError, "all elements of input should be between 0 and 1"
    )


def binary_cross_entropy(
    self: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = _MEAN
) -> jax.Array:
    """The logarithms are kept above -100, as in PyTorch."""
    x, y = _compute(self), _compute(target)
    _in_unit(x)
    low, one = x.dtype.type(-100), x.dtype.type(1)
    loss = (y - one) * lax.max(lax.log1p(-x), low) - y * lax.max(lax.log(x), low)
    if weight is not None:
        loss = loss * weight.astype(x.dtype)
    return reduced(loss, reduction).astype(self.dtype)


def binary_cross_entropy_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x, y = _compute(self), _compute(target)
    grad = _per_element(grad_output, x.size, reduction)
    room = lax.max((x.dtype.type(1) - x) * x, x.dtype.type(1e-12))
    out = grad * (x - y) / room
    if weight is not None:
        out = out * weight.astype(x.dtype)
    return out.astype(self.dtype)


def binary_cross_entropy_with_logits(
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None = None,
    pos_weight: jax.Array | None = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x, y = _compute(self), target.astype(dtypes.opmath(self.dtype))
    zero, one = x.dtype.type(0), x.dtype.type(1)
    log_sigmoid = lax.min(x, zero) - lax.log1p(lax.exp(-lax.abs(x)))
    factor = one if pos_weight is None else (pos_weight.astype(x.dtype) - one) * y + one
    loss = (one - y) * x - factor * log_sigmoid
    if weight is not None:
        loss = loss * weight.astype(x.dtype)
    return reduced(loss, reduction).astype(self.dtype)


def _classes_last(x: jax.Array) -> jax.Array:
    """`(N, C, *S)` or `(C,)` with the classes moved to the end."""
    return jnp.moveaxis(x, 1, -1) if x.ndim > 1 else x


def _class_weights(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    """The target in range, and the weight of each target, zero where it is ignored."""
    ignored = target == ignore_index
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    legal = ignored | ((target >= 0) & (target < classes))
    checks.require(legal, IndexError, f"Target is out of bounds for {classes} classes.")
    safe = jnp.where(ignored, 0, jnp.clip(target, 0, max(classes - 1, 0)))
    if weight is None:
        each = jnp.ones(target.shape, dtypes.opmath(x.dtype))
    else:
        each = _compute(weight).at[safe].get(mode="promise_in_bounds")
    return safe, jnp.where(ignored, each.dtype.type(0), each)


def nll_loss_forward(
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
) -> tuple[jax.Array, jax.Array]:
    """`(N, C, *S)` or `(C,)` log-probabilities -> loss and the sum of the weights."""
    x = _compute(self)
    safe, each = _class_weights(x, target, weight, ignore_index)
    if x.size == 0:
        picked = jnp.zeros(target.shape, x.dtype)
    else:
        index = jnp.expand_dims(safe, 1 if x.ndim > 1 else 0)
        picked = jnp.take_along_axis(
            x, index, axis=1 if x.ndim > 1 else 0, mode="promise_in_bounds"
        ).reshape(target.shape)
    zero = x.dtype.type(0)
    loss = jnp.where(target == ignore_index, zero, -picked * each)
    total = jnp.sum(each)
    if reduction == _NONE:
        # CPU states the weight here only for a single sample.
        known = total if self.ndim == 1 else jnp.zeros((), self.dtype)
        return loss.astype(self.dtype), known.astype(self.dtype)
    out = jnp.sum(loss)
    if reduction == _MEAN:
        out = out / total
    return out.astype(self.dtype), total.astype(self.dtype)


def nll_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    """Each target's class gets ``-weight * grad``; written as a comparison, not a scatter."""
    safe, each = _class_weights(self, target, weight, ignore_index)
    grad = _compute(grad_output)
    if reduction == _MEAN:
        grad = grad / total_weight.astype(grad.dtype)
    zero = grad.dtype.type(0)
    value = jnp.where(target == ignore_index, zero, -each * grad)
    dim = 1 if self.ndim > 1 else 0
    classes = lax.broadcasted_iota(safe.dtype, self.shape, dim)
    hit = classes == jnp.expand_dims(safe, dim).reshape(_with_one(self.shape, dim))
    spread = jnp.expand_dims(value, dim).reshape(_with_one(self.shape, dim))
    return jnp.where(hit, spread, zero).astype(self.dtype)


def _with_one(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _target_weight(x: jax.Array, target: jax.Array, weight: jax.Array | None) -> jax.Array:
    """`(N, 1)`: one, or the weight of each sample's class."""
    if weight is None:
        return jnp.ones((1, 1), x.dtype)
    return weight.astype(x.dtype).at[target].get(mode="promise_in_bounds")[:, None]


def _margins(
    self: jax.Array, target: jax.Array, margin: Operand
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`(N, C)`: what each other class lacks; where the target is; the input; targets `(N,)`."""
    x = _compute(self).reshape((-1, self.shape[-1] if self.ndim else 1))
    y = checks.in_range(
        target.reshape((-1,)), x.shape[1], negative=False, what="target out of range"
    )
    y = jnp.clip(y, 0, x.shape[1] - 1)
    own = jnp.take_along_axis(x, y[:, None], axis=1, mode="promise_in_bounds")
    is_target = lax.broadcasted_iota(y.dtype, x.shape, 1) == y[:, None]
    return cast(margin, x.dtype) - own + x, is_target, x, y


def multi_margin_loss(
    self: jax.Array,
    target: jax.Array,
    p: int = 1,
    margin: Operand = 1,
    weight: jax.Array | None = None,
    reduction: int = _MEAN,
) -> jax.Array:
    """`(N, C)` or `(C,)`: ``sum(max(0, margin - x[y] + x[i]) ** p) / C`` over i other than y."""
    lacking, is_target, x, y = _margins(self, target, margin)
    zero = x.dtype.type(0)
    term = jnp.where(is_target, zero, lax.max(lacking, zero))
    term = term * term if p == 2 else term
    term = term * _target_weight(x, y, weight)
    loss = jnp.sum(term, axis=1) / x.dtype.type(x.shape[1])
    return reduced(loss.reshape(target.shape), reduction).astype(self.dtype)


def multi_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    p: int,
    margin: Operand,
    weight: jax.Array | None = None,
    reduction: int = _MEAN,
) -> jax.Array:
    lacking, is_target, x, y = _margins(self, target, margin)
    zero = x.dtype.type(0)
    slope = (lacking > 0).astype(x.dtype) / x.dtype.type(x.shape[1])
    if p == 2:
        slope = slope * x.dtype.type(2) * lacking
    slope = jnp.where(is_target, zero, slope * _target_weight(x, y, weight))
    slope = jnp.where(is_target, -jnp.sum(slope, axis=1, keepdims=True), slope)
    grad = _per_element(grad_output, x.shape[0], reduction)
    grad = grad.reshape((-1, 1))
    return (slope * grad).reshape(self.shape).astype(self.dtype)


def _label_sets(target: jax.Array, classes: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`(N, C)` labels ended by -1 -> safe labels, which of them count, which classes are hit."""
    legal = (target >= -1) & (target < classes)
    checks.require(legal, RuntimeError, "target is out of range")
    counts = jnp.cumsum((target < 0).astype(np.int32), axis=1) == 0
    safe = jnp.clip(target, 0, classes - 1)
    here = lax.iota(target.dtype, classes)[None, None, :]
    hit = jnp.any((safe[:, :, None] == here) & counts[:, :, None], axis=1)
    return safe, counts, hit


def _label_margins(
    x: jax.Array, safe: jax.Array, counts: jax.Array, hit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`(N, T, C)`: what class c lacks against label t, and whether the pair counts."""
    own = jnp.take_along_axis(x, safe, axis=1, mode="promise_in_bounds")
    lacking = x.dtype.type(1) - own[:, :, None] + x[:, None, :]
    pair = counts[:, :, None] & ~hit[:, None, :] & (lacking > 0)
    return lacking, pair


def multilabel_margin_loss_forward(
    self: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    """`(N, C)` or `(C,)` -> loss, and which classes are labels (in the dtype of the input)."""
    classes = self.shape[-1] if self.ndim else 1
    x = _compute(self).reshape((-1, classes))
    safe, counts, hit = _label_sets(target.reshape((-1, classes)), classes)
    lacking, pair = _label_margins(x, safe, counts, hit)
    total = jnp.sum(jnp.where(pair, lacking, x.dtype.type(0)), axis=(1, 2))
    loss = total / x.dtype.type(classes)
    loss = loss.reshape(self.shape[:-1]) if self.ndim else loss.reshape(())
    return reduced(loss, reduction).astype(self.dtype), hit.reshape(self.shape).astype(self.dtype)


def multilabel_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    reduction: int,
    is_target: jax.Array,
) -> jax.Array:
    classes = self.shape[-1] if self.ndim else 1
    x = _compute(self).reshape((-1, classes))
    safe, counts, hit = _label_sets(target.reshape((-1, classes)), classes)
    pair = _label_margins(x, safe, counts, hit)[1].astype(x.dtype)
    own = lax.iota(safe.dtype, classes)[None, None, :] == safe[:, :, None]
    taken = jnp.sum(pair, axis=2)[:, :, None] * own.astype(x.dtype)
    slope = (jnp.sum(pair, axis=1) - jnp.sum(taken, axis=1)) / x.dtype.type(classes)
    grad = _per_element(grad_output, x.shape[0], reduction).reshape((-1, 1))
    return (slope * grad).reshape(self.shape).astype(self.dtype)


_DISTANCES: tuple[tuple[str, Any, Any], ...] = (
    ("mse_loss", _square, lambda d: d.dtype.type(2) * d),
    ("smooth_l1_loss", _with_beta(_smooth_l1), _smooth_l1_slope),
    ("huber_loss", _with_beta(_huber), _huber_slope),
)

TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::{name}", _distance_loss(loss)) for name, loss, _ in _DISTANCES),
    *(native(f"aten::{name}_backward", _distance_gradient(s)) for name, _, s in _DISTANCES),
    native("aten::soft_margin_loss", soft_margin_loss),
    native("aten::soft_margin_loss_backward", soft_margin_loss_backward),
    native("aten::binary_cross_entropy", binary_cross_entropy),
    native("aten::binary_cross_entropy_backward", binary_cross_entropy_backward),
    native("aten::binary_cross_entropy_with_logits", binary_cross_entropy_with_logits),
    native("aten::nll_loss_forward", nll_loss_forward),
    native("aten::nll_loss2d_forward", nll_loss_forward),
    native("aten::nll_loss_backward", nll_loss_backward),
    native("aten::nll_loss2d_backward", nll_loss_backward),
    native("aten::multi_margin_loss", multi_margin_loss, static={"p"}),
    native("aten::multi_margin_loss_backward", multi_margin_loss_backward, static={"p"}),
    native("aten::multilabel_margin_loss_forward", multilabel_margin_loss_forward),
    native("aten::multilabel_margin_loss_backward", multilabel_margin_loss_backward),
)
