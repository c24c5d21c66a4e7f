# SPDX-License-Identifier: Apache-2.0
"""Reductions over segments of one dimension, forward and backward.

Legend: A leading (batch) dimensions, S segments, N elements of the reduced dimension, R rest.
Segments are named by lengths `(A, S)` or by offsets `(A, S + 1)`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.promotion import Operand, cast
from torchtpu_core.lowering.table import Lowering, native

_IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
#: PyTorch's second names of reductions.
_SYNONYMS = {"amax": "max", "amin": "min"}


class _Segments:
    """Which segment each element of `data` belongs to."""

    def __init__(self, data: jax.Array, lengths: Any, offsets: Any, *, unsafe: bool) -> None:
        if lengths is None and offsets is None:
            raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
        axis = (lengths if offsets is None else offsets).ndim - 1
        self.axis, self.lead = axis, data.shape[:axis]
        self.batches, self.length = math.prod(self.lead), data.shape[axis]
        self.rest = data.shape[axis + 1 :]
        if offsets is None:
            ends = jnp.cumsum(lengths.reshape((self.batches, -1)), axis=1)
            starts = ends - lengths.reshape(ends.shape)
            if not unsafe:
                self._check(lengths, ends)
        else:
            bounds = offsets.reshape((self.batches, -1))
            starts, ends = bounds[:, :-1], bounds[:, 1:]
        self.count = ends.shape[1]
        self.sizes = ends - starts
        place = jnp.arange(self.length, dtype=ends.dtype)
        # Segments may be empty: the first that ends after a place is the place's own.
        ids = jax.vmap(lambda e: jnp.searchsorted(e, place, side="right"))(ends)
        self.inside = (ids < self.count) & (place >= starts[:, :1])
        base = jnp.arange(self.batches)[:, None] * self.count
        self.ids = jnp.where(self.inside, base + ids, self.batches * self.count).reshape((-1,))

    def _check(self, lengths: jax.Array, ends: jax.Array) -> None:
        checks.require(
            lengths >= 0, RuntimeError, "segment_reduce(): lengths contains negative value!"
        )
        if ends.shape[1] and self.length:
            checks.require(
                ends[:, -1] == self.length,
                RuntimeError,
                "segment_reduce(): Expected all rows of lengths along axis to sum to "
                "data.size(axis) when !unsafe.",
            )

    def rows(self, data: jax.Array) -> jax.Array:
        """`(A, N, R)` -> `(A * N, R)`."""
        return data.reshape((self.batches * self.length, *self.rest))

    def reduce(self, rows: jax.Array, reduce: str, initial: jax.Array) -> jax.Array:
        """`(A * N, R)` -> `(A * S, R)`."""
        shape = (self.batches * self.count, *self.rest)
        start = jnp.broadcast_to(initial, shape)
        place = start.at[self.ids]
        merge = {"sum": place.add, "mean": place.add, "prod": place.mul}
        merge |= {"max": place.max, "min": place.min}
        return merge[reduce](rows, mode="drop")

    def gather(self, values: jax.Array) -> jax.Array:
        """`(A * S, R)` -> `(A * N, R)`: each element's segment; 0 outside of all."""
        return values.at[self.ids].get(mode="fill", fill_value=0)

    def per_segment(self, x: jax.Array) -> jax.Array:
        """The segments' sizes as `(A * S, 1...)`."""
        return self.sizes.astype(x.dtype).reshape((-1,) + (1,) * len(self.rest))


def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Operand | None = None,
) -> jax.Array:
    """`(A, N, R)` -> `(A, S, R)`; an empty segment holds `initial`, and a mean of none NaN."""
    reduce = _SYNONYMS.get(reduce, reduce)
    segments = _Segments(data, lengths, offsets, unsafe=unsafe)
    x = segments.rows(data).astype(dtypes.opmath(data.dtype))
    first = _initial(reduce, initial, np.dtype(x.dtype))
    value = segments.reduce(x, reduce, first)
    if reduce == "mean":
        size = segments.per_segment(value)
        empty = first if initial is not None else np.array(np.nan, value.dtype)
        value = jnp.where(size == 0, empty, value / size)
    return value.astype(data.dtype).reshape((*segments.lead, segments.count, *segments.rest))


def _initial(reduce: str, initial: Operand | None, dtype: np.dtype) -> jax.Array:
    return cast(_IDENTITY[reduce] if initial is None else initial, dtype)


def segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: Operand | None = None,
) -> jax.Array:
    """The gradient `(A, N, R)` for the data; that of an extremum is shared by equal elements."""
    reduce = _SYNONYMS.get(reduce, reduce)
    segments = _Segments(data, lengths, offsets, unsafe=True)
    x = segments.rows(data).astype(dtypes.opmath(data.dtype))
    shape = (segments.batches * segments.count, *segments.rest)
    out, slope = (v.reshape(shape).astype(x.dtype) for v in (output, grad))
    if reduce == "mean":
        slope = slope / segments.per_segment(slope)
    spread = segments.gather(slope)
    if reduce in ("max", "min"):
        hit = (x == segments.gather(out)) | jnp.isnan(x)
        ones = lax.select(hit, jnp.ones_like(x), jnp.zeros_like(x))
        shared = segments.gather(segments.reduce(ones, "sum", np.zeros((), x.dtype)))
        spread = jnp.where(spread > 0, spread / jnp.maximum(shared, 1), spread)
        spread = jnp.where(hit, spread, np.zeros((), x.dtype))
    elif reduce == "prod":
        first = _initial(reduce, initial, np.dtype(x.dtype))
        spread = _product_slope(segments, x, (out, slope), first)
    inside = segments.inside.reshape((-1,) + (1,) * len(segments.rest))
    spread = jnp.where(inside, spread, np.zeros((), x.dtype))
    return spread.astype(data.dtype).reshape(data.shape)


def _product_slope(
    segments: _Segments, x: jax.Array, results: tuple[jax.Array, jax.Array], initial: jax.Array
) -> jax.Array:
    """Gradient times the product of the other elements; no division by 0 or NaN."""
    out, slope = results
    zero, nan = x == 0, jnp.isnan(x)

    def others(flag: jax.Array) -> jax.Array:
        ones = lax.select(flag, jnp.ones_like(x), jnp.zeros_like(x))
        total = segments.reduce(ones, "sum", np.zeros((), x.dtype))
        return segments.gather(total) - ones

    plain = segments.reduce(jnp.where(zero | nan, np.ones((), x.dtype), x), "prod", initial)
    rest = segments.gather(plain)
    rest = jnp.where(others(zero) > 0, rest * 0, rest)
    rest = jnp.where(others(nan) > 0, np.array(np.nan, x.dtype), rest)
    return jnp.where(zero | nan, segments.gather(slope) * rest, segments.gather(slope * out) / x)


TABLE: tuple[Lowering, ...] = (
    native("aten::segment_reduce", segment_reduce),
    native("aten::_segment_reduce_backward", segment_reduce_backward),
)
