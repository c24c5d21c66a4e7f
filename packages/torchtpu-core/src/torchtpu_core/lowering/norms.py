# SPDX-License-Identifier: Apache-2.0
"""Vector norms and distances. Matrix norms are made of these by PyTorch itself."""

from __future__ import annotations

import math

import jax
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import constant
from torchtpu_core.lowering.extrema import amax, amin
from torchtpu_core.lowering.promotion import cast, promote
from torchtpu_core.lowering.reductions import Dims, axes_of, keep
from torchtpu_core.lowering.table import Lowering, native


def sum_of_powers(size: jax.Array, axes: tuple[int, ...], order: float) -> jax.Array:
    """``sum(size ** order)`` of non-negative `size`."""
    if order == 0:
        return lax.reduce_sum((size != constant(0, size)).astype(size.dtype), axes)
    if order == 1:
        return lax.reduce_sum(size, axes)
    if order == 2:
        return lax.reduce_sum(size * size, axes)
    return lax.reduce_sum(lax.pow(size, constant(order, size)), axes)


def magnitude(x: jax.Array, axes: tuple[int, ...], order: float) -> jax.Array:
    """The `order`-norm of `x` over `axes`, real, in `x`'s precision."""
    size = lax.abs(x)
    if math.isinf(order):
        if order > 0 and math.prod(x.shape[a] for a in axes) == 0:
            return lax.reduce_sum(size, axes)
        return (amax if order > 0 else amin)(size, axes) if axes else size
    total = sum_of_powers(size, axes, order)
    if order in (0, 1):
        return total
    return lax.sqrt(total) if order == 2 else lax.pow(total, constant(1 / order, total))


def vector_norm(
    self: jax.Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """The `ord`-norm over `dim`; real for complex input; `dtype` converts the input first."""
    input_dtype = self.dtype if dtype is None else dtypes.to_numpy(dtype)
    if not dtypes.is_inexact(input_dtype):
        input_dtype = dtypes.default_float()
    x, axes = cast(self, dtypes.opmath(input_dtype)), axes_of(self, dim)
    value = magnitude(x, axes, float(ord))
    result = value.dtype if dtypes.is_complex(input_dtype) else input_dtype
    return cast(keep(value, x, axes, keepdim), result)


def _norm(
    self: jax.Array,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


def _dist(self: jax.Array, other: jax.Array, p: float = 2) -> jax.Array:
    (x, y), result = promote(self, other)
    value = magnitude(x - y, tuple(range(x.ndim)), float(p))
    return cast(value, np.dtype(value.dtype) if dtypes.is_complex(result) else result)


_NORMS = ("Scalar", "ScalarOpt_dim", "ScalarOpt_dim_dtype", "ScalarOpt_dtype")

TABLE: tuple[Lowering, ...] = (
    native("aten::linalg_vector_norm", vector_norm, static=("ord",)),
    *(native(f"aten::norm.{kind}", _norm, static=("p",)) for kind in _NORMS),
    native("aten::dist", _dist, static=("p",)),
)
