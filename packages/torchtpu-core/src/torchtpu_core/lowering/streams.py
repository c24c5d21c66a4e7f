# SPDX-License-Identifier: Apache-2.0
"""Sums of sums of 16 bits, as in a residual stream: XLA must not compute them from their start.

``x + attention(...)``, ``x + feed_forward(...)`` and so on is a chain of sums, each read by a norm
and by the next sum. XLA:TPU computes sums of 16 bits in float32 and counts them as free: it keeps
the product of every layer in float32 and adds all of them up again where the stream is read. A
barrier between one sum and the next leaves it no choice but to write the stream as the script has
it. The norm reads what is before the barrier, so its sums are still made where the stream is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu_core.lowering import layout, mxu
from torchtpu_core.lowering.promotion import Operand


def written(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The operands of a sum of tokens; those that are such sums themselves go to memory."""
    return (
        layout.behind_barrier(x) if layout.is_sum(x) else x,
        layout.behind_barrier(y) if layout.is_sum(y) else y,
    )


def are_tokens(x: Operand, y: Operand) -> bool:
    """Whether two operands are 16-bit tokens `[B, T, D]` of one shape whose rows fill tiles."""
    return (
        mxu.lowers_for("tpu")
        and isinstance(x, jax.Array)
        and isinstance(y, jax.Array)
        and x.dtype == y.dtype
        and x.shape == y.shape
        and layout.fills_tiles(x)
        and x.dtype.itemsize == 2
        and jnp.issubdtype(x.dtype, jnp.floating)
    )
