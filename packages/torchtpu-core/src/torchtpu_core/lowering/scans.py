# SPDX-License-Identifier: Apache-2.0
"""Cumulative operations along one dimension."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, layout
from torchtpu_core.lowering.arithmetic import logaddexp
from torchtpu_core.lowering.elementwise import constant, is_bool, isnan
from torchtpu_core.lowering.promotion import cast
from torchtpu_core.lowering.table import Lowering, native


def _cumulative(scan: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``cumsum`` or ``cumprod``: integers in int64, 16-bit floats accumulated in float32."""

    def cumulative(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
        if dtype is not None:
            result = dtypes.to_numpy(dtype)
        else:
            result = self.dtype if dtypes.is_inexact(self.dtype) else np.dtype(np.int64)
        compute = np.dtype(np.int32) if result == np.bool_ else dtypes.opmath(result)
        if self.ndim == 0:
            return cast(cast(self, compute), result)
        axis = dim % self.ndim
        before = layout.flipped_from(self, (axis,))
        if before is None:
            return cast(scan(cast(self, compute), axis=axis), result)
        return layout.flipped(
            cast(scan(cast(before, compute), axis=axis, reverse=True), result), (axis,)
        )

    return cumulative


def _cumulative_extreme(largest: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``cummax`` or ``cummin``: values and the index of the last element that reached them."""
    scan = lax.cummax if largest else lax.cummin

    def cumulative_extreme(self: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        if self.ndim == 0:
            return self, jnp.zeros((), np.int64)
        axis = dim % self.ndim
        x = self.astype(np.int8) if is_bool(self) else self
        values = scan(x, axis=axis)
        reached = (x == values) | isnan(x)
        place = lax.broadcasted_iota(np.int32, x.shape, axis)
        index = lax.cummax(jnp.where(reached, place, constant(0, place)), axis=axis)
        return cast(values, self.dtype), index.astype(np.int64)

    return cumulative_extreme


def _logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    if self.ndim == 0:
        return self
    x, axis = cast(self, dtypes.opmath(self.dtype)), dim % self.ndim
    if not dtypes.is_complex(x.dtype):
        return cast(lax.cumlogsumexp(x, axis=axis), self.dtype)
    return lax.associative_scan(logaddexp, x, axis=axis)


TABLE: tuple[Lowering, ...] = (
    native("aten::cumsum", _cumulative(lax.cumsum)),
    native("aten::cumprod", _cumulative(lax.cumprod)),
    native("aten::cummax", _cumulative_extreme(True)),
    native("aten::cummin", _cumulative_extreme(False)),
    native("aten::logcumsumexp", _logcumsumexp),
    native("aten::_logcumsumexp", _logcumsumexp),
)
