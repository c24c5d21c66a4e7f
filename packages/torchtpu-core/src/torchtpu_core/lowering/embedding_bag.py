# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings: rows looked up and reduced per bag, with the dense gradients.

Offsets are values, not shapes: the bag of each index comes from a search in them, and
a bag's sum is a scatter-add. Where a program itself makes the offsets as a ramp, as for
indices of two dimensions, bags are of one size and their sum is a reduction. Modes are
PyTorch's numbers: 0 sum, 1 mean, 2 max. Sparse gradients are in `runtime/sparse/gradients.py`.

Legend: V rows of the table, D features, L indices, B bags.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dtypes, layout
from torchtpu_core.lowering.embedding import rows, scattered
from torchtpu_core.lowering.table import Lowering, native

_SUM, _MEAN, _MAX = 0, 1, 2

#: Above this many comparisons the bags are found by binary search.
_MAX_COMPARISONS = 1 << 20


def _bag_of(offsets: jax.Array, bags: int, length: int) -> jax.Array:
    """`(B,)` starts -> `(L,)`: the bag each index belongs to, int32."""
    starts = offsets[:bags].astype(np.int32)
    places = lax.iota(np.int32, length)
    if bags * length <= _MAX_COMPARISONS:
        reached = (starts[None, :] <= places[:, None]).astype(np.int32)
        return jnp.sum(reached, axis=1, dtype=np.int32) - np.int32(1)
    return jnp.searchsorted(starts, places, side="right").astype(np.int32) - np.int32(1)


def _known_bags(
    offset2bag: jax.Array, offsets: jax.Array, grad: jax.Array, indices: jax.Array
) -> jax.Array:
    """The bag of each index: as saved, or found again (CPU saves nothing when it sums)."""
    if offset2bag.shape == indices.shape:
        return offset2bag
    return _bag_of(offsets, grad.shape[0], indices.shape[0])


def _common_size(offsets: jax.Array, bags: int, length: int) -> int | None:
    """The size of all bags, if the program knows that it is one."""
    known = layout.ramp_of(offsets)
    return known[1] if known is not None and bags and known == (0, length / bags) else None


def _check(indices: jax.Array, offsets: jax.Array | None, size: int) -> None:
    legal = (indices >= 0) & (indices < size)
    message = f"embedding_bag: Expected idx >= 0 && idx < num_embeddings ({size})"
    checks.require(legal, RuntimeError, message)
    if offsets is not None and offsets.shape[0]:
        checks.require(
            offsets[0] == 0,
            RuntimeError,
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
            "from position 0",
        )
        checks.require(
            offsets[-1] <= indices.shape[0],
            RuntimeError,
            "offsets[-1] can not be greater than input's length",
        )


def _largest(
    values: jax.Array, index: jax.Array, bag: jax.Array, kept: jax.Array, bags: int
) -> tuple[jax.Array, jax.Array]:
    """`(L, D)` -> the maximum per bag `(B, D)` and the table row it came from (first wins)."""
    dtype, length = values.dtype, values.shape[0]
    target = jnp.where(kept, bag, bags)
    low = jnp.full((bags, values.shape[1]), -np.inf, dtype)
    best = low.at[target].max(values, mode="drop")
    places = lax.broadcasted_iota(np.int32, values.shape, 0)
    hit = values == rows(best, bag)
    first = jnp.full(best.shape, length, np.int32)
    first = first.at[target].min(jnp.where(hit, places, np.int32(length)), mode="drop")
    found = first < length
    source = rows(index, jnp.minimum(first, max(length - 1, 0)))
    zero = jnp.zeros((), dtype)
    return jnp.where(found, best, zero), jnp.where(found, source, 0)


def _totals(
    values: jax.Array, kept: jax.Array, target: jax.Array, bags: int, each: int | None
) -> jax.Array:
    """`(L, ...)` summed per bag, `(B, ...)`."""
    if each is None:
        zeros = jnp.zeros((bags, *values.shape[1:]), values.dtype)
        return zeros.at[target].add(values, mode="drop")
    counted = jnp.where(kept.reshape((-1,) + (1,) * (values.ndim - 1)), values, 0)
    return jnp.sum(counted.reshape((bags, each, *values.shape[1:])), axis=1, dtype=values.dtype)


def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`(V, D)`, `(L,)`, `(B,)` -> output `(B, D)`, bag of each index, bag sizes, max rows."""
    if weight.ndim != 2:
        message = f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}"
        raise RuntimeError(message)
    bags, length = offsets.shape[0] - int(include_last_offset), indices.shape[0]
    each = _common_size(offsets, bags, length)
    _check(indices, None if each else offsets, weight.shape[0])
    bag = lax.iota(np.int32, length) // each if each else _bag_of(offsets, bags, length)
    kept = jnp.ones((length,), np.bool_) if padding_idx < 0 else indices != padding_idx
    target = jnp.where(kept, bag, bags) if padding_idx >= 0 else bag
    sizes = _totals(jnp.ones((length,), np.int32), kept, target, bags, each)
    values = rows(weight, indices).astype(dtypes.opmath(weight.dtype))
    source = jnp.zeros((0,), np.int64)
    if mode == _MAX:
        out, source = _largest(values, indices, bag, kept, bags)
    else:
        if per_sample_weights is not None:
            values = values * per_sample_weights.astype(values.dtype)[:, None]
        out = _totals(values, kept, target, bags, each)
        if mode == _MEAN:
            out = out / jnp.maximum(sizes, 1).astype(out.dtype)[:, None]
    padded = jnp.pad(sizes, (0, offsets.shape[0] - bags)).astype(offsets.dtype)
    return (
        out.astype(weight.dtype),
        bag.astype(offsets.dtype),
        padded,
        source.astype(offsets.dtype),
    )


def embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
    each: int | None = None,
) -> jax.Array:
    """`(B, D)` -> `(V, D)`; `each` is the size of all bags, if it is known."""
    bags, features = grad.shape
    g = grad.astype(dtypes.opmath(grad.dtype))
    if mode == _MAX:
        filled = (bag_size[:bags] > 0)[:, None]
        target = jnp.where(filled, maximum_indices, num_weights).astype(np.int32)
        columns = lax.broadcasted_iota(np.int32, target.shape, 1)
        zeros = jnp.zeros((num_weights, features), g.dtype)
        return zeros.at[target, columns].add(g, mode="drop").astype(grad.dtype)
    if mode == _MEAN:
        g = g / jnp.maximum(bag_size[:bags], 1).astype(g.dtype)[:, None]
    parts = rows(g, offset2bag) if each is None else jnp.repeat(g, each, axis=0)
    if per_sample_weights is not None:
        parts = parts * per_sample_weights.astype(g.dtype)[:, None]
    index = indices if padding_idx < 0 else jnp.where(indices == padding_idx, num_weights, indices)
    return scattered(parts, index, num_weights, by_frequency=scale_grad_by_freq).astype(grad.dtype)


def embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    if sparse:
        raise NotImplementedError(
            "embedding_bag: a compiled graph has no sparse gradient (sparse=True). Use "
            "sparse=False: its gradient is dense, with zeros in the rows that were not looked up; "
            "or run the backward pass eagerly."
        )
    return embedding_bag_dense_backward(
        grad,
        indices,
        _known_bags(offset2bag, offsets, grad, indices),
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
        _common_size(offsets, grad.shape[0], indices.shape[0]),
    )


def embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    """`(B, D)`, `(V, D)` -> `(L,)`: each looked-up row times the gradient of its bag."""
    compute = dtypes.opmath(grad.dtype)
    bag = _known_bags(offset2bag, offsets, grad, indices)
    product = rows(grad, bag).astype(compute) * rows(weight, indices).astype(compute)
    out = jnp.sum(product, axis=1)
    if padding_idx >= 0:
        out = jnp.where(indices == padding_idx, compute.type(0), out)
    return out.astype(grad.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::_embedding_bag", embedding_bag),
    native("aten::_embedding_bag_forward_only", embedding_bag),
    native("aten::_embedding_bag_backward", embedding_bag_backward),
    native("aten::_embedding_bag_dense_backward", embedding_bag_dense_backward),
    native(
        "aten::_embedding_bag_per_sample_weights_backward",
        embedding_bag_per_sample_weights_backward,
    ),
)
