# SPDX-License-Identifier: Apache-2.0
"""Sums of a tensor whose last dimension is viewed as several, with another that is broadcast there.

So are relative positions added to scores: ``scores.view(B, T, H, W) + rows[..., None]``. On a TPU
the last dimension lies along 128 lanes. XLA:TPU writes the broadcast with every W padded to them,
four times its size for 32, and moves all of it to join H and W again. Here the sum is one of whole
lanes: each value gets to its lanes by a product with a matrix of zeros and ones.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import layout, mxu
from torchtpu_core.lowering.promotion import Operand


def joined(x: Operand, y: Operand) -> tuple[jax.Array, jax.Array, tuple[int, ...]] | None:
    """Both operands of an elementwise operator before the last dimension of one was split.

    Returns:
        The operands and the shape of the result; None if there is no reason to.
    """
    if not mxu.lowers_for("tpu") or not (isinstance(x, jax.Array) and isinstance(y, jax.Array)):
        return None
    for one, other, swapped in ((x, y, False), (y, x, True)):
        whole = layout.split_from(one)
        spread = None if whole is None else _spread(one, other, whole)
        if whole is not None and spread is not None:
            return (spread, whole, one.shape) if swapped else (whole, spread, one.shape)
    return None


def _spread(split: jax.Array, other: jax.Array, whole: jax.Array) -> jax.Array | None:
    """`other`, broadcast to `split` and shaped as `whole`; None if it is not broadcast there."""
    parts = _parts(split.shape, whole.shape[-1])
    lead, tail = split.shape[:-parts], split.shape[-parts:]
    given = other.shape[-parts:]
    if not jnp.issubdtype(other.dtype, jnp.floating) or other.ndim != split.ndim:
        return None
    if other.shape[:-parts] != lead or given == tail:
        return None
    rows = lax.reshape(other, (*whole.shape[:-1], math.prod(given)))
    if rows.shape[-1] == 1:
        return jnp.broadcast_to(rows, whole.shape)
    numbers = np.arange(rows.shape[-1]).reshape(given)
    place = np.broadcast_to(numbers, tail).reshape(-1)
    table = jnp.asarray(np.arange(rows.shape[-1])[:, None] == place, rows.dtype)
    return _by_product(rows, table)


def _parts(shape: tuple[int, ...], size: int) -> int:
    """How many of the last dimensions of `shape` make up a `size`."""
    return next(n for n in range(1, len(shape) + 1) if math.prod(shape[-n:]) == size)


def _by_product(rows: jax.Array, table: jax.Array) -> jax.Array:
    """The columns of `rows` that a table of one 1 per column names, for all values.

    What is not finite would spoil the sum of all columns, so its kind goes by itself. The largest
    float32 would be infinite in the bfloat16 parts that a TPU multiplies; half of it is not.
    """
    dims = (((rows.ndim - 1,), (0,)), ((), ()))

    def product(values: jax.Array) -> jax.Array:
        return lax.dot_general(values, table, dims, precision=lax.Precision.HIGHEST)

    def constant(value: float) -> jax.Array:
        return jnp.asarray(value, rows.dtype)

    spread = product(jnp.where(jnp.isfinite(rows), rows, constant(0)) * constant(0.5)) * constant(2)
    kinds, values = (1, 2, 3), (np.inf, -np.inf, np.nan)
    tests = (rows == np.inf, rows == -np.inf, jnp.isnan(rows))
    kind = constant(0)
    for number, test in zip(kinds, tests, strict=True):
        kind = jnp.where(test, constant(number), kind)
    kind = product(kind)
    for number, value in zip(kinds, values, strict=True):
        spread = jnp.where(kind == number, constant(value), spread)
    return spread
