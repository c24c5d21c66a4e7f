# SPDX-License-Identifier: Apache-2.0
"""Margin losses, forward and backward.

Legend: N batch, C classes, T labels of one sample.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks
from torchtpu_core.lowering.losses import MEAN, compute, pair, per_element, reduced
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native


def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    x, y, result = pair(self, target)
    return reduced(lax.log1p(lax.exp(-y * x)), reduction).astype(result)


def soft_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y, result = pair(self, target)
    grad = per_element(grad_output, x.size, reduction)
    return (-y * lax.logistic(-y * x) * grad).astype(result)


def _target_weight(x: jax.Array, target: jax.Array, weight: jax.Array | None) -> jax.Array:
    """`(N, 1)`: one, or the weight of each sample's class."""
    if weight is None:
        return jnp.ones((1, 1), x.dtype)
    return weight.astype(x.dtype).at[target].get(mode="promise_in_bounds")[:, None]


def _margins(
    self: jax.Array, target: jax.Array, margin: Operand
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`(N, C)`: what each other class lacks; where the target is; the input; targets `(N,)`."""
    x = compute(self).reshape((-1, self.shape[-1] if self.ndim else 1))
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
    reduction: int = MEAN,
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
    reduction: int = MEAN,
) -> jax.Array:
    lacking, is_target, x, y = _margins(self, target, margin)
    zero = x.dtype.type(0)
    slope = (lacking > 0).astype(x.dtype) / x.dtype.type(x.shape[1])
    if p == 2:
        slope = slope * x.dtype.type(2) * lacking
    slope = jnp.where(is_target, zero, slope * _target_weight(x, y, weight))
    slope = jnp.where(is_target, -jnp.sum(slope, axis=1, keepdims=True), slope)
    grad = per_element(grad_output, x.shape[0], reduction)
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
    active = counts[:, :, None] & ~hit[:, None, :] & (lacking > 0)
    return lacking, active


def multilabel_margin_loss_forward(
    self: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    """`(N, C)` or `(C,)` -> loss, and which classes are labels (in the dtype of the input)."""
    classes = self.shape[-1] if self.ndim else 1
    x = compute(self).reshape((-1, classes))
    safe, counts, hit = _label_sets(target.reshape((-1, classes)), classes)
    lacking, active = _label_margins(x, safe, counts, hit)
    total = jnp.sum(jnp.where(active, lacking, x.dtype.type(0)), axis=(1, 2))
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
    x = compute(self).reshape((-1, classes))
    safe, counts, hit = _label_sets(target.reshape((-1, classes)), classes)
    active = _label_margins(x, safe, counts, hit)[1].astype(x.dtype)
    own = lax.iota(safe.dtype, classes)[None, None, :] == safe[:, :, None]
    taken = jnp.sum(active, axis=2)[:, :, None] * own.astype(x.dtype)
    slope = (jnp.sum(active, axis=1) - jnp.sum(taken, axis=1)) / x.dtype.type(classes)
    grad = per_element(grad_output, x.shape[0], reduction).reshape((-1, 1))
    return (slope * grad).reshape(self.shape).astype(self.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::soft_margin_loss", soft_margin_loss),
    native("aten::soft_margin_loss_backward", soft_margin_loss_backward),
    native("aten::multi_margin_loss", multi_margin_loss, static={"p"}),
    native("aten::multi_margin_loss_backward", multi_margin_loss_backward, static={"p"}),
    native("aten::multilabel_margin_loss_forward", multilabel_margin_loss_forward),
    native("aten::multilabel_margin_loss_backward", multilabel_margin_loss_backward),
)
