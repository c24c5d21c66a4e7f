# SPDX-License-Identifier: Apache-2.0
"""Padding by a constant, by reflection and by replication, with the backwards.

Padding is linear, so a backward is the transpose of its forward. Sizes are listed as in
PyTorch: (before, after) of the last dimension first; a negative one crops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native


def constant_pad_nd(self: jax.Array, pad: Sequence[int], value: Operand = 0) -> jax.Array:
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, cast(value, self.dtype), config)


def _reflected(x: jax.Array, dim: int, before: int, after: int) -> list[jax.Array]:
    size = x.shape[dim]
    parts = [x]
    if before > 0:
        parts.insert(0, lax.rev(lax.slice_in_dim(x, 1, before + 1, 1, dim), (dim,)))
    if after > 0:
        parts.append(lax.rev(lax.slice_in_dim(x, size - 1 - after, size - 1, 1, dim), (dim,)))
    return parts


def _replicated(x: jax.Array, dim: int, before: int, after: int) -> list[jax.Array]:
    size = x.shape[dim]
    parts = [x]
    if before > 0:
        edge = lax.slice_in_dim(x, 0, 1, 1, dim)
        parts.insert(0, jnp.broadcast_to(edge, _resized(x, dim, before)))
    if after > 0:
        edge = lax.slice_in_dim(x, size - 1, size, 1, dim)
        parts.append(jnp.broadcast_to(edge, _resized(x, dim, after)))
    return parts


def _resized(x: jax.Array, dim: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:dim], size, *x.shape[dim + 1 :])


Extend = Callable[[jax.Array, int, int, int], list[jax.Array]]


def _padded(x: jax.Array, padding: Sequence[int], extend: Extend) -> jax.Array:
    """Pad each dimension by the parts `extend` gives, then crop what is negative."""
    for i in range(len(padding) // 2):
        dim, before, after = x.ndim - 1 - i, padding[2 * i], padding[2 * i + 1]
        parts = extend(x, dim, before, after)
        if len(parts) > 1:
            x = lax.concatenate(parts, dim)
        if before < 0 or after < 0:
            x = lax.slice_in_dim(x, max(-before, 0), x.shape[dim] - max(-after, 0), 1, dim)
    return x


def _rows(name: str, extend: Extend) -> tuple[Lowering, Lowering]:
    """The forward and backward rows of one kind of padding, for one overload name."""

    def forward(self: jax.Array, padding: Sequence[int]) -> jax.Array:
        if self.size == 0:
            return constant_pad_nd(self, padding)
        return _padded(self, padding, extend)

    def backward(grad_output: jax.Array, self: jax.Array, padding: Sequence[int]) -> jax.Array:
        if self.size == 0 or grad_output.size == 0:
            return jnp.zeros(self.shape, self.dtype)
        # Few values meet where an image is folded back. In their own dtype, a TPU keeps no wider
        # copy of all the others for them.
        folds = extend is _reflected and mxu.lowers_for("tpu")
        compute = self.dtype if folds else dtypes.opmath(self.dtype)
        source = jax.ShapeDtypeStruct(self.shape, compute)
        transposed = jax.linear_transpose(lambda x: _padded(x, padding, extend), source)
        return transposed(grad_output.astype(compute))[0].astype(self.dtype)

    return native(f"aten::{name}", forward), native(f"aten::{name}_backward", backward)


_KINDS = (("reflection", _reflected), ("replication", _replicated))

TABLE: tuple[Lowering, ...] = (
    native("aten::constant_pad_nd", constant_pad_nd),
    *(
        row
        for kind, extend in _KINDS
        for spatial in (1, 2, 3)
        for row in _rows(f"{kind}_pad{spatial}d", extend)
    ),
)
