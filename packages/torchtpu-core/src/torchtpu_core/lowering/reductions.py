# SPDX-License-Identifier: Apache-2.0
"""Reductions: sums, means, products, truth, variances, logsumexp.

16-bit floats are accumulated in float32 and rounded once at the end. A dimension
list that is None or empty means all dimensions; a 0-d tensor has a dimension 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.elementwise import constant, full_like, is_bool, isnan
from torchtpu_core.lowering.layout import LANES
from torchtpu_core.lowering.promotion import cast
from torchtpu_core.lowering.table import Lowering, native

Dims = int | Sequence[int] | None
#: Dimensions of a batch of tokens.
_TOKENS = 3
#: Rows of a tile.
_SUBLANES = 8


def axes_of(x: jax.Array, dim: Dims) -> tuple[int, ...]:
    """The non-negative dimensions that `dim` names; all of them for None or an empty list."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(d % x.ndim for d in dims) if x.ndim else ()


def keep(reduced: jax.Array, x: jax.Array, axes: Sequence[int], keepdim: bool) -> jax.Array:
    """`reduced` with the reduced `axes` of `x` back as length 1 if `keepdim`."""
    if not keepdim:
        return reduced
    return reduced.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


def _sum_dtype(x: jax.Array, dtype: torch.dtype | None) -> np.dtype:
    if dtype is not None:
        return dtypes.to_numpy(dtype)
    return x.dtype if dtypes.is_inexact(x.dtype) else np.dtype(np.int64)


def _accumulate(
    x: jax.Array,
    dim: Dims,
    keepdim: bool,
    dtype: np.dtype,
    reduce: Callable[[jax.Array, Sequence[int]], jax.Array],
) -> jax.Array:
    """`reduce` over `dim` in the accumulation dtype of `dtype`, rounded once."""
    axes = axes_of(x, dim)
    total = reduce(cast(_as_multiplied(x, axes), dtypes.opmath(dtype)), axes)
    return cast(keep(total, x, axes, keepdim), dtype)


def _as_multiplied(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """A value that is summed over some of its leading dimensions, made in the shape of products.

    Tokens `(B, T, D)` are rows `(B*T, D)` of linear layers, scores `(B, H, T, S)` are `(B*H, T, S)`
    of batched products. XLA's TPU compiler computes elementwise work in the shape in which it is
    read. For such a sum it did so again, from products on, and kept those of all layers in float32
    for the gradient of one table of positions. Narrow rows would be padded.
    """
    leading = x.ndim - (1 if x.ndim == _TOKENS else 2)
    if not mxu.lowers_for("tpu") or not 0 < len(axes) < leading or max(axes) >= leading:
        return x
    if x.shape[-1] < LANES or x.shape[-2] % _SUBLANES:
        return x
    made = lax.optimization_barrier(x.reshape(-1, *x.shape[leading:]))
    return made.reshape(x.shape)


def _add_up(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    if is_bool(x):
        return lax.reduce_or(x, axes)
    return lax.reduce_sum(x, tuple(axes))


def _multiply_up(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    return lax.reduce_and(x, axes) if is_bool(x) else lax.reduce_prod(x, axes)


def sum_(
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Sum over `dim`; integers and bools add up in int64."""
    return _accumulate(self, dim, keepdim, _sum_dtype(self, dtype), _add_up)


def _nansum(
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return sum_(jnp.where(isnan(self), constant(0, self), self), dim, keepdim, dtype=dtype)


def mean(
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """Mean over `dim`; of nothing NaN."""
    count = math.prod(self.shape[a] for a in axes_of(self, dim))

    def average(x: jax.Array, axes: Sequence[int]) -> jax.Array:
        total = _add_up(x, axes)
        return total / constant(count, total)

    return _accumulate(self, dim, keepdim, _sum_dtype(self, dtype), average)


def _prod(
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return _accumulate(self, dim, keepdim, _sum_dtype(self, dtype), _multiply_up)


def _truth_of(self: jax.Array, dim: Dims, keepdim: bool, every: bool) -> jax.Array:
    """``all`` (`every`) or ``any``; bool, but uint8 for uint8 input."""
    axes = tuple(range(self.ndim)) if dim is None else axes_of(self, dim)
    truth = cast(self, np.dtype(np.bool_))
    reduced = (lax.reduce_and if every else lax.reduce_or)(truth, axes)
    result = np.uint8 if self.dtype == np.uint8 else np.bool_
    return cast(keep(reduced, self, axes, keepdim), np.dtype(result))


def _all(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return _truth_of(self, dim, keepdim, every=True)


def _any(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return _truth_of(self, dim, keepdim, every=False)


def _over_dims(every: bool) -> Callable[..., jax.Array]:
    """``all.dims`` or ``any.dims``, for which an empty list means no dimension."""

    def over_dims(
        self: jax.Array, dim: Sequence[int] | None = None, keepdim: bool = False
    ) -> jax.Array:
        if dim is not None and len(dim) == 0:
            truth = self != constant(0, self)
            return cast(truth, np.dtype(np.uint8 if self.dtype == np.uint8 else np.bool_))
        return _truth_of(self, dim, keepdim, every)

    return over_dims


def _count_nonzero(self: jax.Array, dim: Dims = None) -> jax.Array:
    truth = cast(self, np.dtype(np.bool_))
    return lax.reduce_sum(truth.astype(np.int64), axes_of(self, dim))


def moments(
    x: jax.Array, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[jax.Array, jax.Array]:
    """Variance (real) and mean of `x` over `dim`, in `x`'s dtype.

    `correction` is subtracted from the count; None means 1. At most zero degrees of
    freedom give NaN or infinity, as the division does; of no elements both are NaN.
    """
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    total = lax.reduce_sum(x, axes)
    average = keep(total / constant(count, total), x, axes, True)
    gap = x - average
    square = lax.real(gap * jnp.conj(gap)) if dtypes.is_complex(x.dtype) else gap * gap
    freedom = max(0.0, count - (1 if correction is None else correction)) if count else 0.0
    summed = lax.reduce_sum(square, axes)
    variance = summed / constant(freedom, summed)
    if not keepdim:
        average = average.reshape(variance.shape)
    return keep(variance, x, axes, keepdim), average


def _spread(root: bool, with_mean: bool) -> Callable[..., object]:
    """``var``, ``std``, ``var_mean`` or ``std_mean``."""

    def spread(
        self: jax.Array,
        dim: Dims = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> object:
        variance, average = moments(cast(self, dtypes.opmath(self.dtype)), dim, correction, keepdim)
        result = variance.dtype if dtypes.is_complex(self.dtype) else self.dtype
        value = cast(lax.sqrt(variance) if root else variance, result)
        return (value, cast(average, self.dtype)) if with_mean else value

    return spread


def _logsumexp(self: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    """``log(sum(exp(self)))`` without overflow; of nothing minus infinity."""
    result = self.dtype if dtypes.is_inexact(self.dtype) else dtypes.default_float()
    x, axes = cast(self, dtypes.opmath(result)), axes_of(self, dim)
    if x.size == 0:
        empty = lax.log(lax.reduce_sum(x, axes))
        return cast(keep(empty, x, axes, keepdim), result)
    size = lax.real(x) if dtypes.is_complex(x.dtype) else x
    peak = keep(lax.reduce_max(size, axes), x, axes, True)
    # An infinite peak would give inf - inf; NaN passes on through the sum.
    peak = jnp.where(jnp.isfinite(peak), peak, full_like(peak, 0))
    total = lax.reduce_sum(lax.exp(x - peak.astype(x.dtype)), axes)
    value = lax.log(total) + peak.reshape(total.shape).astype(x.dtype)
    return cast(keep(value, x, axes, keepdim), result)


def _hash(self: jax.Array, dim: Dims = (), *, keepdim: bool = False, mode: int = 0) -> jax.Array:
    """ "Exclusive or" over `dim` of the bits of the elements as float64 or int64, in uint64."""
    wide = self.astype(np.float64 if dtypes.is_floating(self.dtype) else np.int64)
    axes = axes_of(self, dim)
    return keep(
        lax.reduce_xor(lax.bitcast_convert_type(wide, np.uint64), axes), self, axes, keepdim
    )


_SUMMING = (("sum", sum_), ("mean", mean), ("prod", _prod))

TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::{name}", function) for name, function in _SUMMING),
    native("aten::sum.dim_IntList", sum_),
    native("aten::mean.dim", mean),
    native("aten::prod.dim_int", _prod),
    native("aten::nansum", _nansum),
    *(native(f"aten::all{kind}", _all) for kind in ("", ".dim")),
    *(native(f"aten::any{kind}", _any) for kind in ("", ".dim")),
    native("aten::all.dims", _over_dims(True)),
    native("aten::any.dims", _over_dims(False)),
    native("aten::count_nonzero", _count_nonzero),
    native("aten::count_nonzero.dim_IntList", _count_nonzero),
    native("aten::var.correction", _spread(False, False), static=("correction",)),
    native("aten::std.correction", _spread(True, False), static=("correction",)),
    native("aten::var_mean.correction", _spread(False, True), static=("correction",)),
    native("aten::std_mean.correction", _spread(True, True), static=("correction",)),
    native("aten::logsumexp", _logsumexp),
    native("aten::hash_tensor", _hash),
)
