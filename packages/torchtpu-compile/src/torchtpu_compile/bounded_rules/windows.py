# SPDX-License-Identifier: Apache-2.0
"""Windows over one dimension of an open size: each output is made of a run of places.

First and last place of an output grow with it, and only the program knows them. It goes over the
places of all windows at once, as many times as the longest true window has places: a mask or a
table of all places that padded sizes may ask for would make the work, and often the memory, that
of the square of the size.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from torchtpu_core.lowering import dtypes, mxu


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of places, one for each of `out` outputs.

    Attributes:
        first: the first place of each, `(out,)`.
        last: the one behind its last, `(out,)`.
        size: how many places there are.
    """

    first: jax.Array
    last: jax.Array
    size: int

    def turned(self) -> Runs:
        """The runs of outputs that are made of each place."""
        places = jnp.arange(self.size)[:, None]
        first = jnp.sum(self.last <= places, axis=1)
        last = jnp.sum(self.first <= places, axis=1)
        return Runs(first, last, self.first.shape[0])

    def inside(self) -> jax.Array:
        """Whether a place is in the run of an output, `(size, out)`."""
        places = jnp.arange(self.size)[:, None]
        return (places >= self.first) & (places < self.last)

    def sums(self, x: jax.Array, dim: int, weights: jax.Array) -> jax.Array:
        """Sums of runs of `x` along `dim` with weights `(size, out)`, which are 0 elsewhere.

        By the matrix unit where there is one.
        """
        if mxu.lowers_for("tpu"):
            contracting = (((dim,), (0,)), ((), ()))
            product = lax.dot_general(x, weights, contracting, precision=lax.Precision.HIGHEST)
            return jnp.moveaxis(product, -1, dim)
        outs = jnp.arange(self.first.shape[0])

        def add(k: jax.Array, total: jax.Array) -> jax.Array:
            value, within = self._at(x, dim, k)
            weight = weights.at[self.first + k, outs].get(mode="clip")
            return jnp.where(within, total + value * weight.reshape(within.shape), total)

        return lax.fori_loop(0, self._longest(), add, jnp.zeros(self._shape(x, dim), x.dtype))

    def maxima(self, x: jax.Array, index: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        """The largest of each run along `dim`, which holds a place, and its entry of `index`.

        The first of equal ones; a NaN is the largest, and the last NaN counts.
        """

        def better(k: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            (value, within), (place, _) = self._at(x, dim, k), self._at(index, dim, k)
            larger = value > best[0]
            if dtypes.is_floating(x.dtype):
                larger |= jnp.isnan(value)
            larger &= within
            return jnp.where(larger, value, best[0]), jnp.where(larger, place, best[1])

        start = self._at(x, dim, 0)[0], self._at(index, dim, 0)[0]
        return lax.fori_loop(1, self._longest(), better, start)

    def _longest(self) -> jax.Array:
        return jnp.max(self.last - self.first)

    def _shape(self, x: jax.Array, dim: int) -> tuple[int, ...]:
        return (*x.shape[:dim], self.first.shape[0], *x.shape[dim + 1 :])

    def _at(self, x: jax.Array, dim: int, k: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """The `k`-th value of each run, and whether it has one, `(out, 1, ...)`."""
        place = self.first + k
        value = x.at[(slice(None),) * dim + (place,)].get(mode="clip")
        return value, (place < self.last).reshape(-1, *(1,) * (x.ndim - dim - 1))
