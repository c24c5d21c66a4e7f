# SPDX-License-Identifier: Apache-2.0
"""Which part of a torus each logical axis of a mesh gets.

Axes are placed from the most to the least talkative: tensor, then context, expert,
fsdp and data. An axis takes whole torus axes where their product fits, else neighbouring
chips of one, a line; who takes the rest of that one has its chips that far apart, and
shares its links with as many groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

from torchtpu_core.errors import MeshShapeError
from torchtpu_core.ici.groups import grid_axis
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.torus import Torus

ORDER = ("tensor", "context", "expert", "fsdp", "pipeline", "data")


class _Part(NamedTuple):
    """Chips along a torus axis, `stride` hops apart."""

    axis: int
    length: int
    stride: int


def place(torus: Torus, sizes: Mapping[str, int]) -> dict[str, Span]:
    """What each logical axis with more than one chip spans.

    Raises:
        MeshShapeError: the sizes do not multiply to the chips of the torus.

    >>> torus = Torus(shape=(4, 4, 8), wrap=(True, True, True))
    >>> {name: s.torus.shape for name, s in place(torus, {"tensor": 4, "fsdp": 32}).items()}
    {'tensor': (4,), 'fsdp': (4, 8)}
    """
    total = math.prod(sizes.values())
    if total != torus.chips:
        raise MeshShapeError(
            f"A mesh of {dict(sizes)} has {total} chips and the slice {torus.chips}. "
            f"Make the sizes multiply to {torus.chips}."
        )
    free = [_Part(axis, length, 1) for axis, length in enumerate(torus.shape) if length > 1]
    placed = {}
    for name in sorted(sizes, key=ORDER.index):
        if sizes[name] > 1:
            taken, free = _take(sizes[name], free)
            placed[name] = Span(axes=tuple(grid_axis(torus, *part) for part in taken))
    return placed


def _take(size: int, free: list[_Part]) -> tuple[list[_Part], list[_Part]]:
    """Parts that multiply to `size`, and what is left."""
    for count in range(1, len(free) + 1):
        for chosen in itertools.combinations(range(len(free)), count):
            if math.prod(free[i].length for i in chosen) == size:
                rest = [part for i, part in enumerate(free) if i not in chosen]
                return [free[i] for i in chosen], rest
    return _split(size, free)


def _split(size: int, free: list[_Part]) -> tuple[list[_Part], list[_Part]]:
    """Parts of parts that multiply to `size`, which divides the product of all."""
    taken: list[_Part] = []
    left: list[_Part] = []
    for part in sorted(free, key=lambda part: -math.gcd(part.length, size)):
        length = math.gcd(part.length, size)
        size //= length
        if length > 1:
            taken.append(part._replace(length=length))
        if length < part.length:
            left.append(part._replace(length=part.length // length, stride=part.stride * length))
    return taken, left
