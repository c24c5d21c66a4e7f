# SPDX-License-Identifier: Apache-2.0
"""What is known of a value where it was made, for those who can use it.

XLA:CPU copies a transposed weight at every call of a dot; one 2-D ``dot_general``
that contracts the untransposed dimension does not (a factor of 1.7 on a GPT step).
So whoever transposes a value says so here, and ``matmul.py`` asks. Likewise bags of
embeddings whose offsets are a ramp are all of one size. Nothing is rewritten: the
value itself stays correct, and is dead code if nobody reads it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import jax
from jax import lax

_local = threading.local()


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Remember what is said inside the block (one program's tracing)."""
    outer = getattr(_local, "sources", None), getattr(_local, "ramps", None)
    _local.sources, _local.ramps = {}, {}
    try:
        yield
    finally:
        _local.sources, _local.ramps = outer


def permuted(x: jax.Array, permutation: Sequence[int]) -> jax.Array:
    """``lax.transpose``, remembered; the identity permutation returns `x`."""
    permutation = tuple(permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    result = lax.transpose(x, permutation)
    sources = getattr(_local, "sources", None)
    if sources is not None:
        # The entry holds `result`, so that its id cannot be reused while it is here.
        sources[id(result)] = (result, x, permutation)
    return result


def source_of(x: jax.Array) -> tuple[jax.Array, tuple[int, ...]] | None:
    """The value and permutation that `x` was transposed from, if it was."""
    sources = getattr(_local, "sources", None)
    entry = sources.get(id(x)) if sources else None
    return None if entry is None else (entry[1], entry[2])


def ramp(x: jax.Array, start: int, step: int) -> jax.Array:
    """`x`, `(n,)`, remembered as ``start + i * step``."""
    ramps = getattr(_local, "ramps", None)
    if ramps is not None:
        ramps[id(x)] = (x, start, step)
    return x


def ramp_of(x: jax.Array) -> tuple[int, int] | None:
    """Start and step of a value that is known to be a ramp of whole numbers."""
    ramps = getattr(_local, "ramps", None)
    entry = ramps.get(id(x)) if ramps else None
    return None if entry is None else (entry[1], entry[2])
