# SPDX-License-Identifier: Apache-2.0
"""Matrix products with integers, scales, groups of rows or three operands, by those of `matmul`.

Legend: G groups, M rows of the result, N columns of the result, K contracted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, mxu
from torchtpu_core.lowering.matmul import accumulator, contract, general
from torchtpu_core.lowering.table import Lowering, native


def _int_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return contract(self, mat2, 1, 0, out=np.dtype(np.int32))


def _scaled_mm(
    self: jax.Array,
    mat2: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    bias: jax.Array | None = None,
    scale_result: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """Product of float8 matrices with scales per tensor (one element) or per row and column."""
    f32 = np.dtype(np.float32)
    scale = [s.reshape(()) if s.size == 1 else s for s in (scale_a, scale_b)]
    out = contract(self.astype(f32), mat2.astype(f32), 1, 0, out=f32) * scale[0] * scale[1]
    if bias is not None:
        out = out + bias.astype(f32)
    if scale_result is not None:
        out = out * scale_result.reshape(())
    return out.astype(self.dtype if out_dtype is None else dtypes.to_numpy(out_dtype))


def _weight_int8pack_mm(self: jax.Array, mat2: jax.Array, scales: jax.Array) -> jax.Array:
    """`(M, K)` float, `(N, K)` int8, `(N,)` scales -> `(M, N)`."""
    compute = accumulator(self.dtype)
    out = contract(self.astype(compute), mat2.astype(compute), 1, 1, out=compute)
    return (out * scales.astype(compute)).astype(self.dtype)


def _trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """The product of three operands, each with dimensions inserted, summed over `sumdim`."""
    ndim = i1.ndim + len(expand1)
    dims = [[d for d in range(ndim) if d not in expand] for expand in (expand1, expand2, expand3)]
    kept = [d for d in range(ndim) if d not in sumdim]
    compute = accumulator(i1.dtype)
    terms = [x.astype(compute) for x in (i1, i2, i3)]
    operands = [o for pair in zip(terms, dims, strict=True) for o in pair]
    out = jnp.einsum(*operands, kept, precision=mxu.precision())
    return out.astype(i1.dtype)


def _grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    """Products of groups; `offs` `(G,)` are the ends of the groups along the ragged dimension.

    `(M, K)`, `(G, K, N)` -> `(M, N)`; `(M, K)`, `(K, N)` -> `(G, M, N)`;
    `(G, M, K)`, `(K, N)` -> `(M, N)`; `(G, M, K)`, `(G, K, N)` -> `(G, M, N)`.
    """
    compute = accumulator(self.dtype)
    result = self.dtype if out_dtype is None else dtypes.to_numpy(out_dtype)
    if offs is None:
        out = contract(self, mat2, 2, 1, batch=1, out=compute)
    elif self.ndim == 2 and mat2.ndim == 3:
        sizes = jnp.diff(offs, prepend=0).astype(np.int32)
        out = mxu.multiply(
            lambda x, y: lax.ragged_dot(x, y, sizes, mxu.precision(), compute), self, mat2
        )
    elif self.ndim == 2:
        member = _members(offs, self.shape[1])[:, None, :]
        split = jnp.where(member, self[None], jnp.zeros((), self.dtype))
        out = general(split, mat2, (((2,), (0,)), ((), ())), compute)
    else:
        member = _members(offs, mat2.shape[1])[:, None, :]
        split = jnp.where(member, mat2[None], jnp.zeros((), mat2.dtype))
        every = contract(self, split, 2, 1, batch=1, out=compute)
        out = jnp.sum(jnp.where(member, every, jnp.zeros((), compute)), axis=0)
    if bias is not None:
        out = out + bias.astype(out.dtype)
    return out.astype(result)


def _members(ends: jax.Array, size: int) -> jax.Array:
    """`(G,)` ends -> `(G, size)`: which positions each group holds."""
    place = lax.iota(np.int32, size)[None, :]
    starts = jnp.concatenate([jnp.zeros((1,), ends.dtype), ends[:-1]])
    return (place >= starts[:, None]) & (place < ends[:, None])


TABLE: tuple[Lowering, ...] = (
    native("aten::_int_mm", _int_mm),
    native("aten::_scaled_mm", _scaled_mm),
    native("aten::_weight_int8pack_mm", _weight_int8pack_mm),
    native("aten::_grouped_mm", _grouped_mm),
    native("aten::_trilinear", _trilinear),
)
