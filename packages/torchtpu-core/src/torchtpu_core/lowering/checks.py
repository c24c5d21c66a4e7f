# SPDX-License-Identifier: Apache-2.0
"""Run-time checks inside a lowering: what XLA would silently clamp becomes an error.

A lowering calls `require`; whoever builds the program collects the conditions as
one more small output, and the runtime reads it when the host next synchronises
(at once in Debug) and raises with the user's line.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp


@dataclass(slots=True)
class Collected:
    """Conditions met while one program was traced; `conditions[i]` belongs to `messages[i]`.

    A condition has any shape and must hold everywhere.
    """

    conditions: list[jax.Array] = field(default_factory=list)
    messages: list[tuple[type[Exception], str, int]] = field(default_factory=list)
    node: int = 0


_local = threading.local()


@contextlib.contextmanager
def collecting() -> Iterator[Collected]:
    """Collect the checks of the lowerings that run inside the block."""
    outer = getattr(_local, "collected", None)
    _local.collected = Collected()
    try:
        yield _local.collected
    finally:
        _local.collected = outer


def require(condition: jax.Array, error: type[Exception], message: str) -> None:
    """Raise `error` with `message` at the next synchronisation unless all of `condition` holds.

    Args:
        condition: bool, any shape.
        error: the class CPU PyTorch raises, such as ``IndexError``.
        message: what is wrong, in CPU PyTorch's words where it has some.
    """
    collected: Collected | None = getattr(_local, "collected", None)
    if collected is None:
        return
    collected.conditions.append(jnp.asarray(condition))
    collected.messages.append((error, message, collected.node))


def failed(conditions: Sequence[jax.Array]) -> jax.Array:
    """`(n,)` bool: which conditions do not hold everywhere.

    Conditions of one size are reduced together: each by itself would be three kernels,
    as many as a model has lookups. What fails is counted, since XLA:CPU takes three times
    as long to compile a reduction of bools (jaxlib 0.10.2).
    """
    by_size: dict[int, list[int]] = {}
    for i, condition in enumerate(conditions):
        by_size.setdefault(condition.size, []).append(i)
    flags: dict[int, jax.Array] = {}
    for members in by_size.values():
        rows = jnp.stack([~conditions[i].reshape(-1) for i in members])
        counts = jnp.sum(rows, axis=1, dtype=jnp.int32)
        flags.update((i, counts[row] > 0) for row, i in enumerate(members))
    return jnp.stack([flags[i] for i in range(len(conditions))])


def in_range(index: jax.Array, size: int, *, negative: bool, what: str) -> jax.Array:
    """`index` made non-negative; an index outside its dimension is reported, never clamped.

    Args:
        index: integer array of any shape.
        size: length of the indexed dimension.
        negative: whether ``-size..-1`` is legal and counts from the end.
        what: the text of the IndexError, without the offending value.
    """
    low = -size if negative else 0
    require((index >= low) & (index < size), IndexError, what)
    return jnp.where(index < 0, index + size, index) if negative else index
