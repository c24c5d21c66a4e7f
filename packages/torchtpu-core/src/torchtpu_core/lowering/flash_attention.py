# SPDX-License-Identifier: Apache-2.0
"""Flash attention on a TPU: JAX's own Pallas kernels, where they apply.

Written out, attention keeps the scores of every pair of query and key, which XLA's TPU compiler
puts into HBM. JAX's kernels keep none. They are used when a program is lowered for a TPU and there
are enough scores; XLA's CPU client, which computes a simulated TPU's values, has no such kernels.

The kernels compute whole blocks. Other lengths are filled up with zeros, and the keys among them
belong to a segment of which no query is; a causal mask hides them without that.

Legend as in `attention`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_core.lowering import dtypes, layout
from torchtpu_core.units import ceil_div
from torchtpu_core.xla_tpu import lowering

#: Queries and keys come in whole blocks of so many.
BLOCK = 128
_BLOCKS = (512, 384, 256, BLOCK)
#: Pairs of query and key whose scores, written out, move as many bytes as the kernels for a query
#: (most of it statistics in all lanes of a vector), and for a key. libtpu's schedules of both take
#: the same time at 384 queries and keys.
_PAIRS_OF_QUERY, _PAIRS_OF_KEY = 320, 64
#: Swaps tokens `(B, T, H, V)` and `(B, H, T, V)`.
_HEADS_FIRST = (0, 2, 1, 3)


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
        and pays(query.shape[2], key.shape[2])
    )


def pays(queries: int, keys: int) -> bool:
    """Whether the kernels take less time than scores that are written out."""
    return queries * keys >= _PAIRS_OF_QUERY * whole(queries) + _PAIRS_OF_KEY * whole(keys)


def whole(length: int) -> int:
    """The length that the kernels compute: whole blocks, and large ones if that adds little.

    >>> whole(1500), whole(577), whole(1408)
    (1536, 640, 1408)
    """
    least = ceil_div(length, BLOCK) * BLOCK
    if least == length:
        return length

    def work(padded: int) -> float:  # each block costs about half a smallest block's time
        return padded * (1 + BLOCK / (2 * block(padded)))

    return min(range(least, least + 4 * BLOCK, BLOCK), key=work)


def block(length: int) -> int:
    """The largest block that divides a whole length."""
    return next(size for size in _BLOCKS if length % size == 0)


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


def _filled(x: jax.Array, length: int) -> jax.Array:
    """Zeros behind the queries or keys, or behind what there is one of for each."""
    pads = [(0, 0)] * x.ndim
    pads[2] = (0, length - x.shape[2])
    return jnp.pad(x, pads) if pads[2][1] else x


def _segments(query: jax.Array, key: jax.Array, is_causal: bool) -> Any:
    """Segments that hide the keys that are filled up; None where none can be seen."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds

    queries, keys = query.shape[2], key.shape[2]
    if whole(keys) == keys or (is_causal and queries <= keys):
        return None
    of_keys = np.arange(whole(keys)) >= keys
    return SegmentIds(
        q=jnp.zeros((query.shape[0], whole(queries)), np.int32),
        kv=jnp.broadcast_to(of_keys.astype(np.int32), (key.shape[0], whole(keys))),
    )


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    is_causal: bool,
    scale: float,
    statistics: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Output and logarithm of the sums, as `attention.attend` gives them.

    Without `statistics` the kernel writes none, and what stands for the sums is of no value.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels

    queries, keys = whole(query.shape[2]), whole(key.shape[2])
    rows, columns = block(queries), block(keys)
    wanted, segments = slice(query.shape[2]), _segments(query, key, is_causal)
    key, value = (_filled(repeated(x, query.shape[1]), keys) for x in (key, value))
    given = (_filled(query, queries), key, value, None, segments)
    with jax.enable_x64(False):
        done = kernels._flash_attention_impl(
            *given, statistics, is_causal, scale, 1, rows, columns, columns, False
        )
        if not statistics:
            done = jax.lax.optimization_barrier(done)
            return done[:, :, wanted], jnp.zeros(query.shape[:3], np.float32)
        out, sums, tops = done
        # Both statistics are in every lane of a vector. Without the barrier XLA may sum them up
        # where the gradient reads the result, and keep 256 bytes for each of its 2 until then.
        out, log_sums = jax.lax.optimization_barrier((out, tops + jnp.log(sums)))
        return out[:, :, wanted], log_sums[:, :, wanted]


def _along(out: jax.Array, grad_out: jax.Array) -> jax.Array:
    """Sums of `out` times its gradient, `(B, H, T, V)` -> `(B, H, T)`, in float32.

    Where the gradient comes from tokens with their heads side by side, the projection behind the
    attention keeps those for its weight's gradient, and the sums are of them. Else the kernel's
    result would be kept beside them, with 64 features in 128 lanes.
    """
    batch, heads, length, size = out.shape
    source = layout.source_of(grad_out)
    if source is None or source[1] != _HEADS_FIRST:
        return jnp.sum(out.astype(np.float32) * grad_out.astype(np.float32), axis=-1)

    def tokens(x: jax.Array) -> jax.Array:
        rows = x.transpose(_HEADS_FIRST).reshape(batch * length, heads * size)
        return rows.astype(np.float32)

    of_heads = np.repeat(np.eye(heads, dtype=np.float32), size, axis=0)
    highest = jax.lax.Precision.HIGHEST
    sums = jax.lax.dot(tokens(out) * tokens(grad_out), jnp.asarray(of_heads), precision=highest)
    return sums.reshape(batch, length, heads).transpose(0, 2, 1)


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

    queries, keys = whole(query.shape[2]), whole(key.shape[2])
    rows, columns = block(queries), block(keys)
    of_queries, of_keys = slice(query.shape[2]), slice(key.shape[2])
    heads, segments = (key.shape[1], value.shape[1]), _segments(query, key, is_causal)
    with jax.enable_x64(False):
        along = _along(out, grad_out)
        grad_out = grad_out.astype(query.dtype)
        # The kernels want the sums in every lane of a vector, 128 times as many bytes, and a key
        # for each query head. Without the barrier XLA makes both in the forward pass and keeps
        # them until the backward pass.
        late = jax.lax.optimization_barrier((log_sums, along, key, value))
        log_sums, along, key, value = late
        key, value = (_filled(repeated(x, query.shape[1]), keys) for x in (key, value))
        query, grad_out, log_sums, along = (
            _filled(x, queries) for x in (query, grad_out, log_sums, along)
        )
        # The kernels take the largest score and the sum of exponentials beside it.
        tops, sums = log_sums.astype(np.float32), jnp.ones_like(log_sums, np.float32)
        given = (query, key, value, None, segments, sums, tops, grad_out, along)
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
    d_key, d_value = d_key[:, :, of_keys], d_value[:, :, of_keys]
    return d_query[:, :, of_queries], summed(d_key, heads[0]), summed(d_value, heads[1])
