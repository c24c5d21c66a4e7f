# SPDX-License-Identifier: Apache-2.0
"""Rules for losses: targets in the padding are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from torchtpu_core.lowering import checks

from torchtpu_compile.bounded import Call, Rule
from torchtpu_compile.bounded_rules.common import has_argument
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
    from torchtpu_compile.bounded import align

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


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten::nll_loss_forward", "aten::nll_loss2d_forward"), _nll),
    **dict.fromkeys(("aten::nll_loss_backward", "aten::nll_loss2d_backward"), _nll_backward),
    **dict.fromkeys(
        ("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::soft_margin_loss"),
        _pointwise_loss,
    ),
}
