# SPDX-License-Identifier: Apache-2.0
"""Rules for losses: targets in the padding are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from torchtpu_core.lowering import checks

from torchtpu_compile.aligned import align
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import fitted, has_argument, refuse
from torchtpu_compile.padded import Padded, is_padded, same_dim, true_size


def _prepared(call: Call) -> tuple[Padded, Padded]:
    """Scores and targets with their rows, and those of a gradient per row, in the same places."""
    names = [n for n in ("self", "target", "grad_output") if has_argument(call, n)]
    given = {name: call.arg(name) for name in names}
    x = given["self"]
    rows = [value.dims for name, value in given.items() if name != "self" and value.dims]
    rows += [(x.dims[0], *x.dims[2:])] if len(x.dims) > 1 else []
    apart = any(not all(map(same_dim, dims, rows[0])) for dims in rows)
    open_classes = len(x.dims) > 1 and is_padded(x.dims[1])
    if apart or open_classes:  # true classes in front
        given = {name: call.sizes.compact(value) for name, value in given.items()}
    ignored = int(call.arg("ignore_index"))
    x, target = call.sizes.filled(given["self"], 0), call.sizes.filled(given["target"], ignored)
    if open_classes:
        classes = call.sizes.true(true_size(x.dims[1]))
        legal = (target.array == ignored) | ((target.array >= 0) & (target.array < classes))
        checks.require(legal, IndexError, "Target is out of bounds.")
    for name, value in {**given, "self": x, "target": target}.items():
        call.set(name, value)
    return x, target


def _nll(call: Call) -> Any:
    _, target = _prepared(call)
    loss, weight = call.run()
    each = call.arg("reduction") == 0
    return [Padded(loss, target.dims if each else ()), Padded(weight, ())]


def _nll_backward(call: Call) -> Padded:
    x, _ = _prepared(call)
    grad = call.arg("grad_output")
    call.set("grad_output", call.sizes.filled(grad, 0))
    return Padded(call.run(), x.dims)


def _pointwise_loss(call: Call) -> Padded:
    """mse_loss and its like: each element on its own, then a sum or a mean."""
    a, b = align(call.sizes, call.args[:2])
    reduction = call.arg("reduction")
    call.args[:2] = [a, b]
    call.set("reduction", 0)
    values = call.run()
    each = Padded(jnp.asarray(values), a.dims)
    if reduction == 0:
        return each
    total = jnp.sum(call.sizes.filled(each, 0).array)
    if reduction == 1:
        from torchtpu_compile.bounded_rules.reductions import count_of

        total = total / count_of(call, a, list(range(len(a.dims)))).astype(total.dtype)
    return Padded(total, ())


def _ctc(call: Call) -> Any:
    """ctc_loss: what lies behind a sequence's own lengths counts nowhere."""
    x = _sequences(call)
    losses, alphas = call.run()
    batch = x.dims[1]
    return [Padded(losses, (batch,)), Padded(alphas, tuple(map(call.sizes.dim, call.exprs(1))))]


def _ctc_backward(call: Call) -> Padded:
    x = _sequences(call)
    for name in ("grad", "neg_log_likelihood", "log_alpha"):
        call.set(name, call.sizes.filled(call.sizes.compact(call.arg(name)), 0))
    alphas, labels = call.arg("log_alpha"), 2 * call.arg("targets").array.shape[1] + 1
    # The labels of alphas have a padded size of their own where nothing relates it to the targets'.
    room = fitted(alphas.array, (*alphas.array.shape[:2], labels))
    call.set("log_alpha", Padded(room, alphas.dims))
    return Padded(call.run(), x.dims)


def _sequences(call: Call) -> Padded:
    """The log probabilities, after zeros were put in the padding of targets and lengths.

    Raises:
        Unbounded: the targets are joined, and only their lengths tell where each begins.
    """
    names = ("log_probs", "targets", "input_lengths", "target_lengths")
    x, targets, steps, lengths = (call.sizes.compact(call.arg(name)) for name in names)
    if len(targets.dims) != 2:
        raise refuse(call, "takes targets in one row")
    for operand, room, what in ((steps, x.dims[0], "input"), (lengths, targets.dims[1], "target")):
        legal = operand.array <= call.sizes.true(true_size(room))
        legal |= ~_valid(call, operand)
        message = f"ctc_loss: Expected {what}_lengths to be at most the size there is"
        checks.require(legal, RuntimeError, message)
    for name, value in zip(names, (x, targets, steps, lengths), strict=True):
        call.set(name, value if name == "log_probs" else call.sizes.filled(value, 0))
    return x


def _valid(call: Call, x: Padded) -> Any:
    ok = call.sizes.valid(x, range(len(x.dims)))
    return jnp.ones((), bool) if ok is None else ok


RULES: Mapping[str, Rule] = {
    "aten::_ctc_loss.Tensor": _ctc,
    "aten::_ctc_loss_backward.Tensor": _ctc_backward,
    **dict.fromkeys(("aten::nll_loss_forward", "aten::nll_loss2d_forward"), _nll),
    **dict.fromkeys(("aten::nll_loss_backward", "aten::nll_loss2d_backward"), _nll_backward),
    **dict.fromkeys(
        ("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::soft_margin_loss"),
        _pointwise_loss,
    ),
}
