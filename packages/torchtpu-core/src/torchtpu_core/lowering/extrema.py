# SPDX-License-Identifier: Apache-2.0
"""Largest and smallest values and their positions; NaN counts as beyond every number."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.elementwise import full_like, is_bool, isnan
from torchtpu_core.lowering.reductions import Dims, axes_of, keep
from torchtpu_core.lowering.table import Lowering, native


def _extreme(largest: bool) -> Callable[..., jax.Array]:
    """``amax`` or ``amin``; NaN wins over every number."""

    def extreme(self: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
        axes = axes_of(self, dim)
        if is_bool(self):
            reduced = (lax.reduce_or if largest else lax.reduce_and)(self, axes)
        else:
            reduced = (lax.reduce_max if largest else lax.reduce_min)(self, axes)
            reduced = _nan_if_any(reduced, self, axes)
        return keep(reduced, self, axes, keepdim)

    return extreme


def _nan_if_any(reduced: jax.Array, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """NaN where `x` has one along `axes`.

    StableHLO says that a maximum keeps NaN. XLA:CPU of jaxlib 0.10.2 loses it in a reduction
    that it hands to YNNPACK, which it does with the larger ones, since that is up to 8 times
    as fast as its own.
    """
    if not dtypes.is_floating(x.dtype):
        return reduced
    return jnp.where(lax.reduce_or(isnan(x), axes), x.dtype.type(np.nan), reduced)


amax = _extreme(True)
amin = _extreme(False)


def _aminmax(
    self: jax.Array, *, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


def _aminmax_dim(
    self: jax.Array, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _aminmax(self, dim=dim, keepdim=keepdim)


def position(x: jax.Array, dim: int, largest: bool) -> jax.Array:
    """int64 index of the extreme along `dim`, `dim` removed: the first of equals, NaN before all.

    Two plain reductions: XLA:CPU vectorises them, but not the variadic one of ``lax.argmax``
    (a factor of 6 to 10 on a 1024 x 1024 matrix).
    """
    if x.ndim == 0:
        return jnp.zeros((), np.int64)
    axis = dim % x.ndim
    extreme = (amax if largest else amin)(x, axis, keepdim=True)
    place = lax.broadcasted_iota(np.int32, x.shape, axis)
    beyond = full_like(place, np.iinfo(np.int32).max)
    hit = (x == extreme) | isnan(x)
    return lax.reduce_min(jnp.where(hit, place, beyond), (axis,)).astype(np.int64)


def _position(largest: bool) -> Callable[..., jax.Array]:
    def arg_extreme(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if dim is None:
            index = position(self.reshape(-1), 0, largest)
        else:
            index = position(self, dim, largest)
        return keep(index, self, axes_of(self, dim), keepdim)

    return arg_extreme


def _extreme_along(largest: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``max.dim`` or ``min.dim``: values and their indices."""

    def extreme_along(
        self: jax.Array, dim: int, keepdim: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        index, axes = position(self, dim, largest), axes_of(self, dim)
        value = (amax if largest else amin)(self, dim)
        return keep(value, self, axes, keepdim), keep(index, self, axes, keepdim)

    return extreme_along


TABLE: tuple[Lowering, ...] = (
    native("aten::amax", amax),
    native("aten::amin", amin),
    native("aten::max", _extreme(True)),
    native("aten::min", _extreme(False)),
    native("aten::aminmax", _aminmax),
    native("aten::_aminmax", _aminmax_dim),
    native("aten::_aminmax.dim", _aminmax_dim),
    native("aten::max.dim", _extreme_along(True)),
    native("aten::min.dim", _extreme_along(False)),
    native("aten::argmax", _position(True)),
    native("aten::argmin", _position(False)),
)
