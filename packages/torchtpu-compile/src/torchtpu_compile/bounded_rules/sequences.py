# SPDX-License-Identifier: Apache-2.0
"""Rules for ops along an order: cumulative ops, sorting, the largest few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from torchtpu_core.lowering.elementwise import constant

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import behind_all, dim_of, lowest
from torchtpu_compile.padded import Padded, is_padded, padded_size


def _cumulative(call: Call) -> Any:
    """What is in front does not see what comes after."""
    x = call.args[0]
    dim = dim_of(x, call.arg("dim"))
    if is_padded(x.dims[dim]):
        x = call.args[0] = call.sizes.compact(x)
    values = call.run()
    if isinstance(values, (list, tuple)):
        return [Padded(v, x.dims) for v in values]
    return Padded(values, x.dims)


def _sort(call: Call) -> Any:
    """Padding sorts behind everything; equal elements keep their order, so it stays there."""
    x = call.sizes.compact(call.args[0])
    dim, descending = dim_of(x, call.arg("dim")), bool(call.arg("descending"))
    if is_padded(x.dims[dim]):
        x = call.sizes.filled(x, _last(x, descending), [dim])
    call.args[0] = x
    values, indices = _stable(call, x, dim, descending)
    return [Padded(values, x.dims), Padded(indices, x.dims)]


def _last(x: Padded, descending: bool) -> Any:
    return lowest(x.array.dtype) if descending else behind_all(x.array.dtype)


def _stable(call: Call, x: Padded, dim: int, descending: bool) -> tuple[Any, Any]:
    indices = jnp.argsort(x.array, axis=dim, stable=True, descending=False)
    if descending:
        # Stable from the other end: flip, sort upwards, flip back.
        size = x.array.shape[dim]
        flipped = jnp.flip(x.array, dim)
        indices = size - 1 - jnp.flip(jnp.argsort(flipped, axis=dim, stable=True), dim)
    return jnp.take_along_axis(x.array, indices, dim), indices


def _topk(call: Call) -> Any:
    x = call.sizes.compact(call.args[0])
    dim, largest = dim_of(x, call.arg("dim")), bool(call.arg("largest"))
    size = call.sizes.dim(call.arg("k"))
    if is_padded(x.dims[dim]):
        x = call.sizes.filled(x, _last(x, largest), [dim])
    values, indices = _stable(call, x, dim, largest)
    dims = (*x.dims[:dim], size, *x.dims[dim + 1 :])
    # An open number of ranks may be padded to more than there are elements.
    beyond = [(0, 0, 0)] * x.array.ndim
    beyond[dim] = (0, padded_size(size) - x.array.shape[dim], 0)
    return [Padded(lax.pad(r, constant(0, r), beyond), dims) for r in (values, indices)]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("aten::cumsum", "aten::cumprod", "aten::logcumsumexp", "aten::cummax", "aten::cummin"),
        _cumulative,
    ),
    "aten::sort": _sort,
    "aten::sort.stable": _sort,
    "aten::topk": _topk,
}
