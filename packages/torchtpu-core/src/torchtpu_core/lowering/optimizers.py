# SPDX-License-Identifier: Apache-2.0
"""Fused optimizer steps and gradient scaling: one program for all parameters.

Learning rates and the other coefficients are run-time operands, so that a schedule
compiles nothing. Each function returns the new values of the written lists in
schema order. 16-bit parameters are updated in float32 and rounded once.

With gradient scaling, gradients are unscaled first and written back; if an
overflow was found, nothing at all is updated.

Reference: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import constant
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

Tensors = Sequence[jax.Array]
Lists = tuple[list[jax.Array], ...]


def _skip_on_overflow(found_inf: jax.Array | None, new: Lists, old: Sequence[Tensors]) -> Lists:
    """`new`, cast to the dtypes of `old`; `old` itself if an overflow was found.

    An unchanged value stays the very operand, so that it costs no output.
    """
    cast_new = tuple(
        [cast(n, o.dtype) for n, o in zip(new_list, old_list, strict=True)]
        for new_list, old_list in zip(new, old, strict=True)
    )
    if found_inf is None:
        return cast_new
    overflow = found_inf.reshape(()) == constant(1, found_inf)
    return tuple(
        [
            o if n is o else jnp.where(overflow, o, n)
            for n, o in zip(new_list, old_list, strict=True)
        ]
        for new_list, old_list in zip(cast_new, old, strict=True)
    )


def _unscaled(grad: jax.Array, grad_scale: jax.Array | None) -> jax.Array:
    """The gradient in the compute dtype, divided by the loss scale."""
    grad = cast(grad, dtypes.opmath(grad.dtype))
    return grad if grad_scale is None else grad / cast(grad_scale.reshape(()), grad.dtype)


def _adam(decoupled: bool) -> Callable[..., Lists]:
    """Adam, or AdamW if weight decay is `decoupled` from the gradient."""

    def adam(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Operand,
        beta1: Operand,
        beta2: Operand,
        weight_decay: Operand,
        eps: Operand,
        amsgrad: bool,
        maximize: bool,
        grad_scale: jax.Array | None = None,
        found_inf: jax.Array | None = None,
    ) -> Lists:
        coefficients = (lr, beta1, beta2, weight_decay, eps)
        written: Lists = ([], [], [], [], [])
        for i, param in enumerate(self):
            grad = _unscaled(grads[i], grad_scale)
            peak = max_exp_avg_sqs[i] if amsgrad else None
            moved = _adam_step(
                param,
                -grad if maximize else grad,
                (exp_avgs[i], exp_avg_sqs[i], peak),
                state_steps[i],
                coefficients,
                decoupled,
            )
            kept = grads[i] if grad_scale is None else grad
            for target, value in zip(written, (moved[0], kept, *moved[1:]), strict=True):
                if value is not None:
                    target.append(value)
        old_peaks = max_exp_avg_sqs if amsgrad else []
        old = (self, grads, exp_avgs, exp_avg_sqs, old_peaks)
        results = _skip_on_overflow(found_inf, written, old)
        return results if amsgrad else (*results[:4], list(max_exp_avg_sqs))

    return adam


def _adam_step(
    param: jax.Array,
    grad: jax.Array,
    state: tuple[jax.Array, jax.Array, jax.Array | None],
    step: jax.Array,
    coefficients: tuple[Operand, ...],
    decoupled: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """One parameter's new value and moments, in the compute dtype."""
    dtype = dtypes.opmath(param.dtype)
    lr, beta1, beta2, decay, eps = (cast(c, dtype) for c in coefficients)
    one, count = constant(1, lr), cast(step.reshape(()), dtype)
    param, grad = cast(param, dtype), cast(grad, dtype)
    if decoupled:
        param = param * (one - lr * decay)
    else:
        grad = grad + param * decay
    mean, square = cast(state[0], dtype), cast(state[1], dtype)
    mean = mean + (one - beta1) * (grad - mean)
    square = square * beta2 + (one - beta2) * (grad * grad)
    peak = None if state[2] is None else lax.max(cast(state[2], dtype), square)
    step_size = lr / (one - lax.pow(beta1, count))
    spread = lax.sqrt(square if peak is None else peak)
    spread = spread / lax.sqrt(one - lax.pow(beta2, count)) + eps
    return param - step_size * (mean / spread), mean, square, peak


def _sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: Operand,
    momentum: Operand,
    lr: Operand,
    dampening: Operand,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> Lists:
    """Stochastic gradient descent; momentum is used if there are buffers for it."""
    written: Lists = ([], [], [])
    for i, param in enumerate(self):
        dtype = dtypes.opmath(param.dtype)
        rate, decay, keep, damp = (cast(c, dtype) for c in (lr, weight_decay, momentum, dampening))
        scaled = _unscaled(grads[i], grad_scale)
        value = cast(param, dtype)
        grad = cast(-scaled if maximize else scaled, dtype) + value * decay
        if momentum_buffer_list:
            buffer = cast(momentum_buffer_list[i], dtype)
            buffer = grad if is_first_step else keep * buffer + (constant(1, damp) - damp) * grad
            written[2].append(buffer)
            grad = grad + keep * buffer if nesterov else buffer
        written[0].append(value - rate * grad)
        written[1].append(grads[i] if grad_scale is None else scaled)
    return _skip_on_overflow(found_inf, written, (self, grads, momentum_buffer_list))


def _adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Operand,
    lr_decay: Operand,
    weight_decay: Operand,
    eps: Operand,
    maximize: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> Lists:
    """Adagrad; the steps are counted by the caller."""
    written: Lists = ([], [], [])
    for i, param in enumerate(self):
        dtype = dtypes.opmath(param.dtype)
        rate, fade, decay, epsilon = (cast(c, dtype) for c in (lr, lr_decay, weight_decay, eps))
        one = constant(1, rate)
        scaled = _unscaled(grads[i], grad_scale)
        value = cast(param, dtype)
        grad = cast(-scaled if maximize else scaled, dtype) + value * decay
        total = cast(state_sums[i], dtype) + grad * grad
        count = cast(state_steps[i].reshape(()), dtype)
        rate = rate / (one + (count - one) * fade)
        written[0].append(value - rate * grad / (lax.sqrt(total) + epsilon))
        written[1].append(grads[i] if grad_scale is None else scaled)
        written[2].append(total)
    results = _skip_on_overflow(found_inf, written, (self, grads, state_sums))
    return (*results, list(state_steps))


def _adagrad_tensor_lr(*args: Tensors, **coefficients: object) -> Lists:
    """The overload whose schema does not mark the steps as written."""
    return _adagrad(*args, **coefficients)[:3]  # type: ignore[arg-type]


def _check_and_unscale(
    self: Tensors, found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Gradients times `inv_scale`; `found_inf` becomes 1 if one of them was not finite."""
    bad, scaled = found_inf.reshape(()), []
    for grad in self:
        finite = jnp.all(jnp.isfinite(grad))
        bad = jnp.where(finite, bad, constant(1, bad))
        factor = cast(inv_scale.reshape(()), dtypes.opmath(grad.dtype))
        product = cast(grad, dtypes.opmath(grad.dtype)) * factor
        scaled.append(cast(product, grad.dtype))
    return scaled, bad.reshape(found_inf.shape)


def _update_scale(
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: Operand,
    scale_backoff_factor: Operand,
    growth_interval: Operand,
) -> tuple[jax.Array, jax.Array]:
    """The new loss scale and the count of steps without overflow."""
    overflow = (found_inf != constant(0, found_inf)).reshape(self.shape)
    tracker = growth_tracker.reshape(self.shape)
    count = tracker + constant(1, tracker)
    due = count == cast(growth_interval, count.dtype)
    grown = self * cast(scale_growth_factor, self.dtype)
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    kept = jnp.where(due, grown, self)
    scale = jnp.where(overflow, self * cast(scale_backoff_factor, self.dtype), kept)
    steps = jnp.where(overflow | due, constant(0, count), count)
    return scale, steps.reshape(growth_tracker.shape)


_ADAM = ("lr", "beta1", "beta2", "weight_decay", "eps")
_SGD = ("lr", "weight_decay", "momentum", "dampening")
_ADAGRAD = ("lr", "lr_decay", "weight_decay", "eps")
_SCALE = ("scale_growth_factor", "scale_backoff_factor", "growth_interval")

_FUSED: tuple[tuple[str, Callable[..., Lists], tuple[str, ...]], ...] = (
    ("_fused_adam", _adam(False), _ADAM),
    ("_fused_adamw", _adam(True), _ADAM),
    ("_fused_sgd", _sgd, _SGD),
)

TABLE: tuple[Lowering, ...] = (
    *(
        native(f"aten::{name}{kind}", function, runtime=runtime)
        for name, function, runtime in _FUSED
        for kind in ("", ".tensor_lr", "_", "_.tensor_lr")
    ),
    *(native(f"aten::_fused_adagrad{i}", _adagrad, runtime=_ADAGRAD) for i in ("", "_")),
    *(
        native(f"aten::_fused_adagrad{i}.tensor_lr", _adagrad_tensor_lr, runtime=_ADAGRAD)
        for i in ("", "_")
    ),
    *(
        native(f"aten::_amp_foreach_non_finite_check_and_unscale{i}", _check_and_unscale)
        for i in ("", "_")
    ),
    *(native(f"aten::_amp_update_scale{i}", _update_scale, runtime=_SCALE) for i in ("", "_")),
)
