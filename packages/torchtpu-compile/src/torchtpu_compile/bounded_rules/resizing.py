# SPDX-License-Identifier: Apache-2.0
"""Rules for antialiased resizing of images of open size.

As at fixed sizes, an output is a sum of some places of the input with weights; here the places
and weights are computed by the program, from the true sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax
from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.upsample import SMOOTHINGS, Smoothing, Windows

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules import batches
from torchtpu_compile.bounded_rules.common import refuse
from torchtpu_compile.padded import Padded, padded_size, true_size
from torchtpu_compile.symbols import is_static


class _Resizing:
    """One dimension from a size to another.

    Args:
        call: of the op.
        size: true size of the input.
        out: of the output.
        scale: how many times larger the output is, if the user said so.
    """

    def __init__(self, call: Call, size: sympy.Expr, out: sympy.Expr, scale: Any) -> None:
        self.align = bool(call.arg("align_corners"))
        if not (scale is None or isinstance(scale, float)):
            raise refuse(call, "has a scale that only the call knows")
        self.scale = scale if scale and not self.align else None
        self.size, self.out = (call.sizes.true(e) for e in (size, out))
        self.padded_size = padded_size(call.sizes.dim(size))
        self.padded_out = padded_size(call.sizes.dim(out))

    def _ratio(self, dtype: np.dtype) -> jax.Array:
        if self.scale is not None:
            return jnp.asarray(1 / self.scale, dtype)
        size, out = (n.astype(dtype) for n in (self.size, self.out))
        if self.align:
            return jnp.where(out > 1, (size - 1) / jnp.maximum(out - 1, 1), 0)
        return size / out

    def apply(self, x: jax.Array, dim: int, smoothing: Smoothing) -> jax.Array:
        """`x` with dimension `dim` resized."""
        windows, weights = self._table(smoothing, np.dtype(x.dtype))
        return _combined(x, dim, weights, windows.first, windows.last)

    def turned(self, x: jax.Array, dim: int, smoothing: Smoothing) -> jax.Array:
        """The transpose of `apply`: `x` is a gradient of the result."""
        windows, weights = self._table(smoothing, np.dtype(x.dtype))
        places = jnp.arange(self.padded_size)[:, None]
        first = jnp.sum(windows.last <= places, axis=1)  # both bounds grow with the output
        last = jnp.sum(windows.first <= places, axis=1)
        return _combined(x, dim, weights.T, first, last)

    def _table(self, smoothing: Smoothing, dtype: np.dtype) -> tuple[Windows, jax.Array]:
        """The windows, and the weights `(padded size, padded out)`."""
        windows = smoothing.windows(self.size, self._ratio(dtype), self.padded_out, dtype, jnp)
        weights = smoothing.weights(jnp.arange(self.padded_size)[:, None], windows, jnp)
        return windows, weights.astype(dtype)


def _combined(
    x: jax.Array, dim: int, weights: jax.Array, first: jax.Array, last: jax.Array
) -> jax.Array:
    """Sums along `dim` of `x` with weights `(n, out)`, which are 0 outside ``[first, last)``.

    By the matrix unit where there is one. Elsewhere place by place, as many times as the true
    sizes ask for: a table of all places that padded sizes may ask for takes their square.
    """
    if mxu.lowers_for("tpu"):
        contracting = (((dim,), (0,)), ((), ()))
        product = lax.dot_general(x, weights, contracting, precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(product, -1, dim)
    outs = jnp.arange(weights.shape[1])
    lane = (-1, *(1,) * (x.ndim - dim - 1))

    def add(k: jax.Array, total: jax.Array) -> jax.Array:
        place = first + k
        weight = weights.at[place, outs].get(mode="clip").reshape(lane)
        taken = x.at[(slice(None),) * dim + (place,)].get(mode="clip")
        return jnp.where((place < last).reshape(lane), total + taken * weight, total)

    shape = (*x.shape[:dim], len(outs), *x.shape[dim + 1 :])
    return lax.fori_loop(0, jnp.max(last - first), add, jnp.zeros(shape, x.dtype))


def _steps(call: Call, sizes: list[Any], outs: list[Any]) -> list[_Resizing]:
    """Those of height and width."""
    scales = (call.arg("scales_h"), call.arg("scales_w"))
    return [_Resizing(call, *each) for each in zip(sizes, outs, scales, strict=True)]


def _forward(smoothing: Smoothing, member: Rule) -> Rule:
    def rule(call: Call) -> Any:
        x = call.sizes.compact(call.arg("self"))
        sizes, outs = [true_size(d) for d in x.dims[2:]], call.exprs()[2:]
        if all(map(is_static, (*sizes, *outs))):
            return member(call)
        if not dtypes.is_floating(np.dtype(x.array.dtype)):
            raise refuse(call, "rounds 8-bit pixels by weights that depend on the size")
        height, width = _steps(call, sizes, outs)
        value = call.sizes.filled(x, 0).array.astype(dtypes.opmath(x.array.dtype))
        value = height.apply(width.apply(value, 3, smoothing), 2, smoothing)
        return call.result(value.astype(x.array.dtype))

    return rule


def _backward(smoothing: Smoothing, member: Rule) -> Rule:
    def rule(call: Call) -> Any:
        grad = call.sizes.compact(call.arg("grad_output"))
        sizes, outs = call.exprs()[2:], [true_size(d) for d in grad.dims[2:]]
        if all(map(is_static, (*sizes, *outs))):
            return member(call)
        height, width = _steps(call, sizes, outs)
        value = call.sizes.filled(grad, 0).array.astype(dtypes.opmath(grad.array.dtype))
        value = width.turned(height.turned(value, 2, smoothing), 3, smoothing)
        return Padded(
            value.astype(grad.array.dtype),
            (*grad.dims[:2], *(call.sizes.dim(n) for n in sizes)),
        )

    return rule


RULES: Mapping[str, Rule] = {
    name: make(smoothing, batches.RULES[name])
    for kind, smoothing in SMOOTHINGS.items()
    for name, make in (
        (f"aten::_upsample_{kind}2d_aa", _forward),
        (f"aten::_upsample_{kind}2d_aa_backward", _backward),
    )
}
