# SPDX-License-Identifier: Apache-2.0
"""Comparisons, logic and selection: results are bools or one of the operands, never rounded.

Operands are compared in their promoted dtype itself, so that a number is first
rounded to a bfloat16 tensor's dtype, as PyTorch does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering.elementwise import constant, is_bool, isnan, rows, selecting
from torchtpu_core.lowering.promotion import Operand, cast, result_type
from torchtpu_core.lowering.table import Lowering, composite, native


def _truth(x: Operand) -> jax.Array:
    return cast(x, np.dtype(np.bool_))


def _logical_and(self: Operand, other: Operand) -> jax.Array:
    return _truth(self) & _truth(other)


def _logical_or(self: Operand, other: Operand) -> jax.Array:
    return _truth(self) | _truth(other)


def _logical_xor(self: Operand, other: Operand) -> jax.Array:
    return _truth(self) ^ _truth(other)


def _logical_not(self: jax.Array) -> jax.Array:
    return ~_truth(self)


def _larger(x: jax.Array, y: jax.Array) -> jax.Array:
    return x | y if is_bool(x) else lax.max(x, y)


def _smaller(x: jax.Array, y: jax.Array) -> jax.Array:
    return x & y if is_bool(x) else lax.min(x, y)


maximum = selecting(_larger)
minimum = selecting(_smaller)


def _fmax(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(isnan(x), y, jnp.where(isnan(y), x, _larger(x, y)))


def _fmin(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(isnan(x), y, jnp.where(isnan(y), x, _smaller(x, y)))


def clamp(
    self: jax.Array,
    min: Operand | None = None,
    max: Operand | None = None,
) -> jax.Array:
    """`self` limited to [min, max]; NaN anywhere gives NaN; `max` wins where they cross."""
    bounds = [b for b in (min, max) if b is not None]
    dtype = result_type(self, *bounds)
    x = cast(self, dtype)
    if min is not None:
        x = _larger(*jnp.broadcast_arrays(x, cast(min, dtype)))
    if max is not None:
        x = _smaller(*jnp.broadcast_arrays(x, cast(max, dtype)))
    return x


def where(condition: jax.Array, self: Operand, other: Operand) -> jax.Array:
    """`self` where `condition` holds, else `other`; all three broadcast."""
    dtype = result_type(self, other)
    chosen = jnp.broadcast_arrays(_truth(condition), cast(self, dtype), cast(other, dtype))
    return lax.select(*chosen)


def _heaviside(x: jax.Array, values: jax.Array) -> jax.Array:
    zero = constant(0, x)
    step = (x if is_bool(x) else x > zero).astype(x.dtype)
    return jnp.where(x == zero, values, step)


def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shapes and all values agree; reads one bool on the host."""
    return self.shape == other.shape and bool(torch.eq(self, other).all().item())


def _all_true(self: jax.Array) -> jax.Array:
    return jnp.all(self)


def _any_true(self: jax.Array) -> jax.Array:
    return jnp.any(self)


_COMPARISONS = (
    ("eq", lax.eq),
    ("ne", lax.ne),
    ("lt", lax.lt),
    ("le", lax.le),
    ("gt", lax.gt),
    ("ge", lax.ge),
)

_SELECTIONS = (
    ("maximum", _larger),
    ("minimum", _smaller),
    ("fmax", _fmax),
    ("fmin", _fmin),
    ("heaviside", _heaviside),
    ("clamp_min", _larger),
    ("clamp_min.Tensor", _larger),
    ("clamp_max", _smaller),
    ("clamp_max.Tensor", _smaller),
)

TABLE: tuple[Lowering, ...] = (
    *rows(((f"{name}.Tensor", f) for name, f in _COMPARISONS), selecting),
    *rows(((f"{name}.Scalar", f) for name, f in _COMPARISONS), selecting),
    *rows(_SELECTIONS, selecting),
    native("aten::clamp", clamp),
    native("aten::clamp.Tensor", clamp),
    native("aten::where.self", where),
    native("aten::logical_and", _logical_and),
    native("aten::logical_or", _logical_or),
    native("aten::logical_xor", _logical_xor),
    native("aten::logical_not", _logical_not),
    composite("aten::equal", _equal),
    native("aten::_is_all_true", _all_true),
    native("aten::_is_any_true", _any_true),
)
