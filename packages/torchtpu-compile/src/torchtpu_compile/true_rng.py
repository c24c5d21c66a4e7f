# SPDX-License-Identifier: Apache-2.0
"""Random numbers at padded sizes: each element has the number it has at true sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax
from torch.fx import Node
from torchtpu_core.lowering.rng import Rng, index_dtype

from torchtpu_compile.padded import Sizes
from torchtpu_compile.symbols import Unbounded, expression, is_static

_WORD = np.dtype(np.uint32)


class TrueRng(Rng):
    """A stream whose bits depend on the place in the true tensor, not in the padded one."""

    __slots__ = ("_exprs", "_sizes")
    _exprs: list[sympy.Expr]
    _sizes: Sizes

    @classmethod
    def of(cls, rng: Rng, sizes: Sizes, exprs: Sequence[sympy.Expr]) -> TrueRng:
        """A stream for a tensor of these true sizes."""
        own = cls(rng.seed, rng.offset)
        own._sizes = sizes
        own.place_at(exprs)
        return own

    def place_at(self, exprs: Sequence[sympy.Expr]) -> None:
        """State the true sizes of what is drawn."""
        self._exprs = list(exprs)

    def bits(self, shape: tuple[int, ...], dtype: np.dtype = _WORD) -> jax.Array:
        """Uniform random bits, `shape`.

        Raises:
            Unbounded: what is drawn has other sizes than were stated.
        """
        fixed = ((n, int(e)) for n, e in zip(shape, self._exprs, strict=False) if is_static(e))
        if len(shape) != len(self._exprs) or any(drawn != size for drawn, size in fixed):
            raise Unbounded("a random op draws numbers of another shape than its result")
        self.draws += 1
        numbers = index_dtype(math.prod(shape))
        index, stride = jnp.zeros((), numbers), jnp.ones((), numbers)
        for d in reversed(range(len(shape))):
            index = index + lax.broadcasted_iota(numbers, shape, d) * stride
            stride = stride * self._sizes.true(self._exprs[d]).astype(numbers)
        return self.bits_at(index, dtype)


def true_shape(node: Node) -> list[sympy.Expr]:
    """The true sizes of a node's value, or of the first of its values."""
    value = node.meta["val"]
    tensor = value[0] if isinstance(value, (tuple, list)) else value
    return [expression(s) for s in tensor.shape]
