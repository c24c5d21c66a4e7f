# SPDX-License-Identifier: Apache-2.0
"""Flash attention on a TPU: JAX's own Pallas kernels, where they apply.

Written out, attention keeps the scores of every pair of query and key, which XLA's TPU
compiler puts into HBM. JAX's kernels keep none. They are used when a program is lowered for
a TPU; XLA's CPU client, which computes a simulated TPU's values, has no such kernels.

Legend as in `attention`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_core.lowering import dtypes
from torchtpu_core.xla_tpu import lowering

#: Queries and keys come in whole blocks of so many.
BLOCK = 128
_LARGEST = 512


def applies(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: Any, dropout_p: float
) -> bool:
    """Whether the kernels compute this attention, and the program is for a TPU."""
    return (
        lowering.target() is not None
        and bias is None
        and not dropout_p
        and query.dtype in (np.dtype(jnp.bfloat16), np.dtype(np.float32))
        and query.shape[3] == key.shape[3] == value.shape[3]
        and query.shape[2] % BLOCK == 0
        and key.shape[2] % BLOCK == 0
    )


def repeated(x: jax.Array, heads: int) -> jax.Array:
    """Keys or values with a head for each of the query's, as the kernels want them."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def summed(grad: jax.Array, heads: int) -> jax.Array:
    """The transpose of `repeated`."""
    if grad.shape[1] == heads:
        return grad
    batch, wide, *rest = grad.shape
    groups = grad.reshape((batch, heads, wide // heads, *rest))
    return jnp.sum(groups, axis=2, dtype=dtypes.opmath(grad.dtype)).astype(grad.dtype)


def _block(length: int) -> int:
    """The largest block that divides a length."""
    return next(size for size in (_LARGEST, 256, BLOCK) if length % size == 0)


def forward(
    query: jax.Array, key: jax.Array, value: jax.Array, *, is_causal: bool, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Output and logarithm of the sums, as `attention.attend` gives them."""
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels

    rows, columns = _block(query.shape[2]), _block(key.shape[2])
    key, value = (repeated(x, query.shape[1]) for x in (key, value))
    with jax.enable_x64(False):
        out, sums, tops = kernels._flash_attention_impl(
            query, key, value, None, None, True, is_causal, scale, 1, rows, columns, columns, False
        )
        return out, tops + jnp.log(sums)


def backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    log_sums: jax.Array,
    *,
    is_causal: bool,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients for query, key and value."""
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels

    rows, columns = _block(query.shape[2]), _block(key.shape[2])
    heads = key.shape[1], value.shape[1]
    with jax.enable_x64(False):
        grad_out = grad_out.astype(query.dtype)
        along = jnp.sum(out.astype(np.float32) * grad_out.astype(np.float32), axis=-1)
        # The kernels want the sums in every lane of a vector, 128 times as many bytes, and a key
        # for each query head. Without the barrier XLA makes both in the forward pass and keeps
        # them until the backward pass.
        late = jax.lax.optimization_barrier((log_sums, along, key, value))
        log_sums, along, key, value = late
        key, value = (repeated(x, query.shape[1]) for x in (key, value))
        # The kernels take the largest score and the sum of exponentials beside it.
        tops, sums = log_sums.astype(np.float32), jnp.ones_like(log_sums, np.float32)
        given = (query, key, value, None, None, sums, tops, grad_out, along)
        options: dict[str, Any] = {
            "sm_scale": scale,
            "causal": is_causal,
            "mask_value": kernels.DEFAULT_MASK_VALUE,
            "debug": False,
        }
        d_key, d_value = kernels._flash_attention_bwd_dkv(
            *given,
            block_q_major=rows,
            block_q=rows,
            block_k_major=columns,
            block_k=columns,
            **options,
        )
        # This kernel is given a copy of `along` for each key of a block: the smallest block.
        d_query, _ = kernels._flash_attention_bwd_dq(
            *given, block_q_major=rows, block_k_major=BLOCK, block_k=BLOCK, **options
        )
    return d_query, summed(d_key, heads[0]), summed(d_value, heads[1])
