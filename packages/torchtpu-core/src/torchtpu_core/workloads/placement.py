# SPDX-License-Identifier: Apache-2.0
"""Which part of a torus each logical axis of a mesh gets.

Axes are placed from the most to the least talkative: tensor, then context, expert,
fsdp and data. An axis takes whole torus axes where their product fits, else a part of
one, which is then a line; a part of a wrapped axis loses the wrap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from torchtpu_core.errors import MeshShapeError
from torchtpu_core.ici.torus import Torus

ORDER = ("tensor", "context", "expert", "fsdp", "pipeline", "data")


def place(torus: Torus, sizes: Mapping[str, int]) -> dict[str, Torus]:
    """The torus of each logical axis with more than one chip.

    Raises:
        MeshShapeError: the sizes do not multiply to the chips of the torus.

    >>> torus = Torus(shape=(4, 4, 8), wrap=(True, True, True))
    >>> {name: part.shape for name, part in place(torus, {"tensor": 4, "fsdp": 32}).items()}
    {'tensor': (4,), 'fsdp': (4, 8)}
    """
    total = math.prod(sizes.values())
    if total != torus.chips:
        raise MeshShapeError(
            f"A mesh of {dict(sizes)} has {total} chips and the slice {torus.chips}. "
            f"Make the sizes multiply to {torus.chips}."
        )
    free = [(n, w) for n, w in zip(torus.shape, torus.wrap, strict=True) if n > 1]
    placed = {}
    for name in sorted(sizes, key=ORDER.index):
        if sizes[name] > 1:
            taken, free = _take(sizes[name], free)
            shape, wrap = zip(*taken, strict=True)
            placed[name] = Torus(shape=shape, wrap=wrap)
    return placed


_Axes = list[tuple[int, bool]]


def _take(size: int, free: _Axes) -> tuple[_Axes, _Axes]:
    """Axes that multiply to `size`, and what is left."""
    for count in range(1, len(free) + 1):
        for chosen in itertools.combinations(range(len(free)), count):
            if math.prod(free[i][0] for i in chosen) == size:
                rest = [axis for i, axis in enumerate(free) if i not in chosen]
                return [free[i] for i in chosen], rest
    return _split(size, free)


def _split(size: int, free: _Axes) -> tuple[_Axes, _Axes]:
    """Parts of axes that multiply to `size`; a split axis is a line on both sides."""
    taken: _Axes = []
    left = list(free)
    for i in sorted(range(len(free)), key=lambda i: -math.gcd(free[i][0], size)):
        if size == 1:
            break
        length, wrap = free[i]
        part = math.gcd(length, size)
        if part > 1:
            size //= part
            whole = part == length
            taken.append((part, wrap and whole))
            left[i] = (1, False) if whole else (length // part, False)
    if size > 1:
        # The shape does not divide: the rest is a line through what is left.
        taken.append((size, False))
        left = [(max(1, math.prod(n for n, _ in left) // size), False)]
    return taken, [axis for axis in left if axis[0] > 1]
