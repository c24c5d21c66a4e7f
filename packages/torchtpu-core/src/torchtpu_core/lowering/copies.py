# SPDX-License-Identifier: Apache-2.0
"""Copies, casts and fills: values move or change dtype, nothing is computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torchtpu_core.lowering import cut_rows, dtypes, layout
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native


def copy(self: jax.Array, src: Operand, non_blocking: bool = False) -> jax.Array:
    """`src` in `self`'s shape and dtype."""
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


def _to_copy(
    self: jax.Array, *, dtype: torch.dtype | None = None, non_blocking: bool = False
) -> jax.Array:
    if dtype is None:
        return self
    to = dtypes.to_numpy(dtype)
    if cut_rows.of(self) is None and layout.cut_from(self) is None:
        return layout.widened(cast(self, to), self)
    return layout.by_rows(self, lambda rows: cast(rows, to))


def _clone(self: jax.Array) -> jax.Array:
    return self


def _fill(self: jax.Array, value: Operand) -> jax.Array:
    return jnp.broadcast_to(cast(value, self.dtype), self.shape)


def _zero(self: jax.Array) -> jax.Array:
    return jnp.zeros(self.shape, self.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::copy", copy),
    native("aten::_to_copy", _to_copy),
    native("aten::clone", _clone),
    native("aten::fill.Scalar", _fill),
    native("aten::fill.Tensor", _fill),
    native("aten::zero", _zero),
)
