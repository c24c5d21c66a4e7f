# SPDX-License-Identifier: Apache-2.0
"""Shortest ways on tori, twisted ones included, as vectors of hops.

A torus whose axes all wrap looks the same from every chip: it is the grid of whole numbers
with a lattice of periods taken out. A period goes once round an axis, and back by the
twist. The shortest ways from a chip to the one at an offset are the shortest vectors that
differ from the offset by periods. Axes that do not wrap have no period.

Reference: Camara et al., Twisted Torus Topologies for Enhanced Interconnection Networks,
IEEE TPDS 21(12), 2010.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtpu_core.ici.torus import Torus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# A shortest vector has less than two lengths in any axis, so two periods of each suffice.
_MOST_PERIODS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """All shortest ways between chips of a torus whose axes all wrap.

    Attributes:
        offset: `[W]`, number of the chip at the end, from chip 0.
        hops: `[W, D]`, signed hops along each axis.
        fraction: `[W]`, one over the number of ways to that chip.
    """

    offset: Ints
    hops: Ints
    fraction: Floats


def periods(torus: Torus) -> Ints:
    """One period per axis, `[D, D]`: once round, less the twist; zero where nothing wraps."""
    rows = np.diag(np.where(torus.wrap, torus.shape, 0)).astype(np.int64)
    for axis in torus.axes:
        rows[axis] -= np.array(torus.twist_of(axis), dtype=np.int64)
    return rows


@functools.lru_cache(maxsize=32)
def shortest_ways(torus: Torus) -> Ways:
    """All shortest ways from chip 0 of a torus whose axes all wrap."""
    grids = np.indices(torus.shape[::-1]).reshape(len(torus.shape), -1)[::-1].T
    counts = range(-_MOST_PERIODS, _MOST_PERIODS + 1)
    if not torus.twisted:
        counts = range(-1, 1)
    best = np.full(len(grids), np.iinfo(np.int64).max)
    shifts = [
        np.array(combination) @ periods(torus)
        for combination in itertools.product(counts, repeat=len(torus.shape))
    ]
    for shift in shifts:
        np.minimum(best, np.abs(grids + shift).sum(axis=1), out=best)
    offsets, hops = [], []
    for shift in shifts:
        moved = grids + shift
        chosen = np.flatnonzero(np.abs(moved).sum(axis=1) == best)
        offsets.append(chosen)
        hops.append(moved[chosen])
    offset = np.concatenate(offsets)
    ties = np.bincount(offset, minlength=len(grids))
    return Ways(offset=offset, hops=np.concatenate(hops), fraction=1 / ties[offset])


@functools.lru_cache(maxsize=32)
def link_shares(torus: Torus) -> tuple[tuple[float, float], ...]:
    """By axis, up and down: hops of one message to every chip, shared over shortest ways."""
    ways = shortest_ways(torus)
    up = (np.maximum(ways.hops, 0) * ways.fraction[:, None]).sum(axis=0)
    down = (np.maximum(-ways.hops, 0) * ways.fraction[:, None]).sum(axis=0)
    return tuple(zip(up.tolist(), down.tolist(), strict=True))


@functools.lru_cache(maxsize=32)
def farthest_alone(torus: Torus) -> int:
    """Most hops to a chip that only one shortest way leads to."""
    ways = shortest_ways(torus)
    return int(np.abs(ways.hops[ways.fraction == 1]).sum(axis=1).max())


def first_way(torus: Torus) -> Ints:
    """One shortest way to each chip of a torus that wraps on all axes, `[P, D]`."""
    ways = shortest_ways(torus)
    _, first = np.unique(ways.offset, return_index=True)
    result: Ints = ways.hops[first]
    return result
