# SPDX-License-Identifier: Apache-2.0
"""Transposes that a contraction can absorb.

XLA:CPU copies a transposed weight at every call of a dot; one 2-D ``dot_general``
that contracts the untransposed dimension does not (a factor of 1.7 on a GPT step).
So whoever transposes a value says so here, and ``matmul.py`` asks. Nothing is
rewritten: the transposed value stays correct, and is dead code if nobody reads it.
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
    """Remember the transposes made inside the block (one program's tracing)."""
    outer = getattr(_local, "sources", None)
    _local.sources = {}
    try:
        yield
    finally:
        _local.sources = outer


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
