# SPDX-License-Identifier: Apache-2.0
"""Dimension numbers and sizes as PyTorch writes them, made canonical.

PyTorch's meta kernels have already refused what is out of range, so these helpers
only normalise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax


def wrap(dim: int, ndim: int) -> int:
    """`dim` counted from the front; a 0-d tensor counts as one dimension."""
    return dim % max(ndim, 1)


def wrap_all(dims: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Every entry of `dims` counted from the front."""
    return tuple(wrap(d, ndim) for d in dims)


def numel(shape: Sequence[int]) -> int:
    """How many elements a tensor of `shape` has."""
    return math.prod(shape)


def inferred(size: Sequence[int], count: int) -> tuple[int, ...]:
    """`size` with its ``-1``, if any, replaced so that it holds `count` elements."""
    size = tuple(int(s) for s in size)
    if -1 not in size:
        return size
    known = math.prod(s for s in size if s != -1)
    return tuple((count // known if known else 0) if s == -1 else s for s in size)


def span(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The half-open range that ``x[start:end]`` takes of a dimension of `length`."""
    low, high, _ = slice(start, end).indices(length)
    return low, max(low, high)


def at_least_1d(x: jax.Array) -> jax.Array:
    """`x`, a 0-d array reshaped to `(1,)`."""
    return lax.reshape(x, (1,)) if x.ndim == 0 else x


def zero(dtype: np.dtype) -> np.ndarray:
    """A 0-d constant zero of `dtype`."""
    return np.zeros((), dtype)


def zeros(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Zeros of `shape` and `dtype`."""
    return lax.full(tuple(shape), zero(dtype), dtype)


def iota(
    shape: Sequence[int], dim: int, dtype: np.dtype | type[np.generic] = np.int32
) -> jax.Array:
    """The coordinate along `dim` at every position of `shape`."""
    return lax.broadcasted_iota(np.dtype(dtype), tuple(shape), dim)
