# SPDX-License-Identifier: Apache-2.0
"""Lowerings of numbers evenly spaced between two ends: linspace, and logspace in exponents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, promotion
from torchtpu_core.lowering.factories import space_dtype
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.table import Lowering, native


def even_steps(
    start: Operand,
    end: Operand,
    steps: int,
    dtype: np.dtype,
    *,
    count: jax.Array | None = None,
) -> jax.Array:
    """`(steps,)` from `start` to `end`, built from both ends so that both are exact.

    In integers the ends are whole, as the CPU rounds them, and what is between them is not.
    With a `count`, int64 `()`, known when the program runs, only so many of `steps` count.
    """
    if dtypes.is_complex(dtype):
        compute = dtype
    elif dtypes.is_integral(dtype):
        compute = np.dtype(np.float64)
        start, end = promotion.cast(start, dtype), promotion.cast(end, dtype)
    else:
        compute = dtypes.opmath(dtype)
    first, last = promotion.cast(start, compute), promotion.cast(end, compute)
    first, last = lax.reshape(first, ()), lax.reshape(last, ())
    if steps <= 1:
        return jnp.broadcast_to(first, (steps,))
    # Divided as it is written: XLA would multiply by the reciprocal of a constant.
    true = np.int32(steps) if count is None else count.astype(np.int32)
    intervals = lax.optimization_barrier(jnp.asarray(true - 1).astype(compute))
    step = (last - first) / intervals
    position = lax.iota(np.int32, steps)
    up = first + step * position.astype(compute)
    down = last - step * (true - 1 - position).astype(compute)
    return lax.select(position < true // 2, up, down)


def _linspace(
    start: Operand, end: Operand, steps: int, *, dtype: torch.dtype | None = None
) -> jax.Array:
    target = space_dtype(dtype, start, end)
    return promotion.cast(even_steps(start, end, steps, target), target)


def _linspace_out(
    start: Operand, end: Operand, steps: int, *, out: jax.ShapeDtypeStruct
) -> jax.Array:
    return lax.reshape(even_steps(start, end, steps, np.dtype(out.dtype)), tuple(out.shape))


def power_steps(
    start: Operand,
    end: Operand,
    steps: int,
    base: float,
    dtype: np.dtype,
    *,
    count: jax.Array | None = None,
) -> jax.Array:
    """Powers of `base`, `(steps,)`, whose exponents are `even_steps`."""
    exponents = even_steps(start, end, steps, dtype, count=count)
    return jnp.power(np.array(base, exponents.dtype), exponents)


def _logspace(
    start: Operand,
    end: Operand,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    target = space_dtype(dtype, start, end)
    return promotion.cast(power_steps(start, end, steps, base, target), target)


def _logspace_out(
    start: Operand,
    end: Operand,
    steps: int,
    base: float = 10.0,
    *,
    out: jax.ShapeDtypeStruct,
) -> jax.Array:
    values = power_steps(start, end, steps, base, np.dtype(out.dtype))
    return lax.reshape(values, tuple(out.shape))


#: Overloads by what the ends are, numbers or tensors.
_OUT_ENDS = (".", ".Tensor_Tensor_", ".Tensor_Scalar_", ".Scalar_Tensor_")

TABLE: tuple[Lowering, ...] = (
    native("aten::linspace", _linspace, static=("start", "end")),
    native("aten::linspace.Tensor_Tensor", _linspace),
    native("aten::linspace.Tensor_Scalar", _linspace),
    native("aten::linspace.Scalar_Tensor", _linspace),
    *(native(f"aten::linspace{ends}out", _linspace_out) for ends in _OUT_ENDS),
    native("aten::logspace", _logspace, static=("start", "end")),
    native("aten::logspace.Tensor_Tensor", _logspace),
    native("aten::logspace.Tensor_Scalar", _logspace),
    native("aten::logspace.Scalar_Tensor", _logspace),
    *(native(f"aten::logspace{ends}out", _logspace_out) for ends in _OUT_ENDS),
)
