# SPDX-License-Identifier: Apache-2.0
"""Which values lie as a convolution's images do on a TPU, while a program is traced.

XLA's TPU compiler keeps an image pixel by pixel, features along the lanes and the batch along the
sublanes. To join its pixels and its batch to the rows of a matrix moves all of it, once before a
linear layer and once after, and what is between two such layers is kept in float32, as the
rounding goes past the change of shape. So whoever multiplies asks here (`lowering.matmul`).
Elementwise work, norms and linear layers, over features or over pixels, keep the order of what they
read; so do transposes, and reshapes that leave the features one dimension.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence

import jax

_local = threading.local()
#: Dimensions of an image: of waves XLA lays time along the lanes as often as features.
_RANK = 4


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Remember what is said inside the block (one program's tracing)."""
    outer = getattr(_local, "images", None), getattr(_local, "shapes", {}), _waves()
    _local.images, _local.shapes, _local.waves = {}, {}, set()
    try:
        yield
    finally:
        _local.images, _local.shapes, _local.waves = outer


def _waves() -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = getattr(_local, "waves", set())
    return found


def mark(x: jax.Array, features: int) -> jax.Array:
    """`x`, remembered as an image, or what is made of one, with its features in a dimension."""
    known = getattr(_local, "images", None)
    if known is not None:
        # The entry holds `x`, so that its id cannot be reused while it is here.
        known[id(x)] = (x, features)
        _local.shapes[x.shape] = features
    return x


def features_of(x: jax.Array) -> int | None:
    """The dimension of an image's features; None of what is no image."""
    entry = (getattr(_local, "images", None) or {}).get(id(x))
    return None if entry is None else entry[1]


def lies_like_one(x: jax.Array) -> int | None:
    """As `features_of`; also of what has the shape of an image, as the gradient of a mean has.

    What is broadcast has no order of its own, and takes that of whoever reads it.
    """
    features = features_of(x)
    return getattr(_local, "shapes", {}).get(x.shape) if features is None else features


def convolved(x: jax.Array) -> jax.Array:
    """A convolution's result, or gradient, `(N, C, ...)`."""
    if x.ndim >= _RANK:
        return mark(x, 1)
    _waves().add(x.shape)
    return x


def is_wave(x: jax.Array) -> bool:
    """Whether `x` has the shape `(N, C, T)` of what a convolution over time made."""
    return x.shape in _waves()


def follow(made: jax.Array, x: jax.Array) -> jax.Array:
    """`made` of `x` element by element, or by a norm."""
    features = features_of(x)
    return made if features is None or made.shape != x.shape else mark(made, features)


def permuted(made: jax.Array, x: jax.Array, permutation: Sequence[int]) -> jax.Array:
    """`made` of `x` by a transpose."""
    features = features_of(x)
    return made if features is None else mark(made, permutation.index(features))


def reshaped(made: jax.Array, x: jax.Array) -> jax.Array:
    """`made` of `x` by a reshape: still an image if its features are one dimension."""
    features = features_of(x)
    if features is None:
        return made
    before = math.prod(x.shape[:features])
    for dim, size in enumerate(made.shape):
        if size == x.shape[features] and math.prod(made.shape[:dim]) == before:
            return mark(made, dim)
    return made
