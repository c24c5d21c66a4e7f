# SPDX-License-Identifier: Apache-2.0
"""Heads of attention that take more of a TPU's memory than the tokens they are parts of.

Of heads `(B, H, T, E)` the tiles of 8 times 128 hold queries and features. 49 queries of 32
features take 4.6 times their bytes, as rows or as columns, and XLA:TPU moves what goes through a
barrier before it, and keeps it so. What a gradient reads again goes through as tokens, then.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from torchtpu_core.lowering import layout

#: Heads that take so many times their bytes are kept as tokens from the forward pass,
PADDED = 1.5
#: and those of one projection, of which the values are kept so, too.
PADDED_TOGETHER = 1.2


def least(query: jax.Array, key: jax.Array, value: jax.Array) -> float:
    """From which padding on heads are kept as tokens."""
    origins = {id(layout.origin(x)[0]) for x in (query, key, value)}
    return PADDED_TOGETHER if len(origins) == 1 else PADDED


def are_padded(x: jax.Array, least: float) -> bool:
    """Whether `x` is heads that take at least so many times their bytes."""
    return x.ndim == 4 and layout.tile_padding(*x.shape[-2:]) >= least


def later(values: Sequence[jax.Array], value: jax.Array, least: float) -> list[jax.Array]:
    """The same values behind one barrier; padded heads as the tokens that they were cut from.

    Args:
        values: query, key and what else goes through.
        value: what is multiplied by the probabilities; it goes through only as a part of tokens
            that do, as those of one projection. Moved at once, it is read by both passes.
        least: from which padding on.
    """
    made = [layout.origin(x) if are_padded(x, least) else (x, None) for x in (*values, value)]
    through = {id(root): root for root, _ in made[:-1]}
    behind = dict(zip(through, lax.optimization_barrier(tuple(through.values())), strict=True))
    again = [(behind.get(id(root), root), move) for root, move in made]
    return [x if move is None else move(x) for x, move in again]
