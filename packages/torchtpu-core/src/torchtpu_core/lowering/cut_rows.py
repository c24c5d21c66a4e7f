# SPDX-License-Identifier: Apache-2.0
"""Rows of a matrix that were cut along the tokens they belong to, and joined.

Labels of a language model are shifted against its logits: ``logits[:, :-1]`` is read as a matrix
of ``B * (T - 1)`` rows. Such rows fill no tiles of a TPU, which moves all of them to join them, and
again for the gradient. What is computed row by row is computed of all tokens instead, and cut and
joined afterwards, which costs nothing if whoever reads it does so, too.

Legend: B sequences, T tokens, C classes, N rows that were cut and joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import layout, mxu


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows ``(N, C)`` lie.

    Attributes:
        whole: the rows of all tokens, ``(B * T, C)``, or ``(..., T, C)`` if those fill no tiles.
        shape: ``(..., T, C)``.
        part: ``(..., t, C)``, the shape of what was cut out of that; its rows are the N.
        starts: of that part along each dimension.
    """

    whole: jax.Array
    shape: tuple[int, ...]
    part: tuple[int, ...]
    starts: layout.Starts

    def taken(self, made: jax.Array) -> jax.Array:
        """The ``(N, C)`` of a `made` that is shaped as `whole`."""
        rows = layout.cut(layout.reshaped(made, self.shape), self.starts, self.part)
        return layout.reshaped(rows, (math.prod(self.part[:-1]), self.part[-1]))

    def taken_values(self, made: jax.Array) -> jax.Array:
        """The ``(N,)`` of one value for each row of `whole`."""
        cut = layout.cut(made.reshape(self.shape[:-1]), self.starts[:-1], self.part[:-1])
        return cut.reshape(math.prod(self.part[:-1]))

    def spread(self, values: jax.Array) -> jax.Array:
        """One value for each row, ``(N,)``, as a column of `whole`; of other rows zero."""
        part = values.reshape(self.part[:-1])
        if self.part != self.shape:
            empty = jnp.zeros(self.shape[:-1], values.dtype)
            part = lax.dynamic_update_slice(empty, part, self.starts[:-1])
        return part.reshape(*self.whole.shape[:-1], 1)

    def matches(self, other: Rows) -> bool:
        """Whether the rows of another matrix lie alike."""
        same = self.shape == other.shape and self.part == other.part
        return same and layout.same_starts(self.starts, other.starts)


def of(x: jax.Array) -> Rows | None:
    """Where the rows of a matrix lie on a TPU, if they were cut, or joining them moves all data."""
    source = layout.rows_of(x) if x.ndim == 2 and mxu.lowers_for("tpu") else None
    if source is None:
        return None
    before = layout.cut_from(source)
    if before is None and source.shape[-2] % layout.SUBLANES == 0:
        return None
    whole, starts = before or (source, (0,) * source.ndim)
    return Rows(_matrix(whole), whole.shape, source.shape, starts)


def _matrix(tokens: jax.Array) -> jax.Array:
    """Tokens as rows where that moves nothing."""
    if tokens.shape[-2] % layout.SUBLANES:
        return tokens
    return layout.reshaped(tokens, (math.prod(tokens.shape[:-1]), tokens.shape[-1]))


def embedded(part: jax.Array, shape: tuple[int, ...], starts: layout.Starts) -> jax.Array | None:
    """`part` among zeros in `shape`, if it is known to be cut from just there."""
    before = layout.cut_from(part) if mxu.lowers_for("tpu") else None
    if before is None or before[0].shape != shape or not layout.same_starts(before[1], starts):
        return None
    inside = lax.full(shape[:-1], True)
    for dim, (start, size) in enumerate(zip(starts[:-1], part.shape[:-1], strict=True)):
        place = lax.broadcasted_iota(np.int32, shape[:-1], dim)
        inside &= (place >= start) & (place < start + size)
    whole = _matrix(before[0])
    made = jnp.where(inside.reshape(*whole.shape[:-1], 1), whole, np.zeros((), part.dtype))
    return layout.reshaped(made, shape)
