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
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.upsample import SMOOTHINGS, Smoothing

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules import batches
from torchtpu_compile.bounded_rules.common import refuse
from torchtpu_compile.bounded_rules.windows import Runs
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
        runs, weights = self._table(smoothing, np.dtype(x.dtype))
        return runs.sums(x, dim, weights)

    def turned(self, x: jax.Array, dim: int, smoothing: Smoothing) -> jax.Array:
        """The transpose of `apply`: `x` is a gradient of the result."""
        runs, weights = self._table(smoothing, np.dtype(x.dtype))
        return runs.turned().sums(x, dim, weights.T)

    def _table(self, smoothing: Smoothing, dtype: np.dtype) -> tuple[Runs, jax.Array]:
        """Of which places the outputs are, with weights `(padded size, padded out)`."""
        windows = smoothing.windows(self.size, self._ratio(dtype), self.padded_out, dtype, jnp)
        weights = smoothing.weights(jnp.arange(self.padded_size)[:, None], windows, jnp)
        return Runs(windows.first, windows.last, self.padded_size), weights.astype(dtype)


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
