# SPDX-License-Identifier: Apache-2.0
"""The numbers of a recorded trace that change from run to run, and how its program reads them."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax

from torchtpu_core.lowering.promotion import SCALAR_WORDS, Scalar
from torchtpu_core.lowering.rng import Rng

_KINDS = {"b": bool, "i": int, "f": float}


class Words:
    """The scalar operands of a trace, handed out in recording order.

    Args:
        words: all of them packed, `(n * SCALAR_WORDS,)` uint32; None: there are none.
    """

    def __init__(self, words: jax.Array | None) -> None:
        self.words = words
        self.next = 0
        self._singles = None if words is None else lax.bitcast_convert_type(words, np.float32)

    def take(self, count: int) -> range:
        """Which scalars the next `count` are."""
        taken = range(self.next, self.next + count)
        self.next += count
        return taken

    def of(self, index: int) -> jax.Array:
        """A scalar's words, `(SCALAR_WORDS,)` uint32."""
        assert self.words is not None
        return lax.slice_in_dim(self.words, index * SCALAR_WORDS, (index + 1) * SCALAR_WORDS)

    def scalar(self, index: int, kind: str, dtype: Any = None) -> Scalar:
        """A scalar as an argument of a lowering."""
        assert self._singles is not None
        single = lax.index_in_dim(self._singles, index * SCALAR_WORDS + 2, keepdims=False)
        return Scalar(_KINDS[kind], self.of(index), dtype, single)

    def rng(self, scalars: range) -> Rng:
        """The stream of a random op, whose last two scalars are seed and offset."""
        return Rng(_bits(self.of(scalars[-2])), _bits(self.of(scalars[-1])))

    def starts(self, plan: tuple[Any, ...]) -> list[jax.Array]:
        """The next view starts, as many as the plan has: int32 where its box is that small.

        Where a box reaches along all of a dimension, or nearly all, its start is known if it is 0.
        """
        kind, radix, _, _, count, front = plan
        taken = self.take(count)
        if kind != "slice":
            return [self._start(i) for i in taken]
        small = math.prod(radix) <= np.iinfo(np.int32).max
        read = self._small_start if small else self._start
        zero = np.dtype(np.int32 if small else np.int64).type(0)
        return [zero if known else read(i) for i, known in zip(taken, front, strict=True)]

    def _small_start(self, index: int) -> jax.Array:
        low = lax.index_in_dim(self.of(index), 0, keepdims=False)
        return lax.bitcast_convert_type(low, np.int32)

    def _start(self, index: int) -> jax.Array:
        return Scalar(int, self.of(index)).to(np.dtype(np.int64))


def _bits(words: jax.Array) -> jax.Array:
    return words[0].astype(np.uint64) | (words[1].astype(np.uint64) << np.uint64(32))
