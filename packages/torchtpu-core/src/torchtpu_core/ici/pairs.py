# SPDX-License-Identifier: Apache-2.0
"""The flows of an all-to-all: every chip to every other, over all shortest ways.

Where a ring is even, the chip half-way round is reached both ways, half the bytes each. Ways
go axis by axis. On a torus that looks the same from every chip, the flows to one offset are
one flow. Chips that form no grid send as single messages go.
"""

from __future__ import annotations

import numpy as np

from torchtpu_core.ici.fabric import Fabric, Floats, Ints
from torchtpu_core.ici.fluid import FlowPattern, FlowRound
from torchtpu_core.ici.lattice import shortest_ways
from torchtpu_core.ici.routing import offsets, routes, walk
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.torus import Torus


def pairs_alike(span: Span, torus: Torus, part_bytes: float, hop_ps: float) -> FlowRound:
    """The flows of one chip that stands for all, links numbered by axis and direction."""
    if span.twisted:
        ways, physical = shortest_ways(torus), list(torus.axes)
        strides = np.ones(len(physical), dtype=np.int64)
    else:
        ways, physical = shortest_ways(span.torus), [axis.axis for axis in span.axes]
        strides = np.array([axis.stride for axis in span.axes])
    far = np.flatnonzero(ways.offset != 0)
    hops = ways.hops[far] * strides
    flow, axis = np.nonzero(hops)
    count = hops[flow, axis]
    none = np.zeros(len(far), dtype=np.int64)
    latency_ps = np.rint(np.abs(hops).sum(axis=1) * hop_ps).astype(np.int64)
    link = 2 * np.array(physical)[axis] + (count < 0)
    pattern = FlowPattern.of(none, none, latency_ps, flow, link, np.abs(count).astype(np.float64))
    return FlowRound(pattern, part_bytes * ways.fraction[far])


def all_pairs(
    fabric: Fabric, span: Span, chips: Ints, part_bytes: float | Floats, hop_ps: float
) -> FlowRound:
    """The flows of all groups, `chips` `[groups, P]`, each by itself.

    `part_bytes` is that of all pairs of positions, or `[P, P]`; what is empty does not flow.
    """
    count = span.chips_per_slice
    parts = np.broadcast_to(np.asarray(part_bytes, dtype=np.float64), (count, count))
    if span.members is not None:
        return _messages(fabric, chips, parts, hop_ps)
    if span.twisted:
        source, target, moved, fraction = _twisted_ways(fabric.torus)
    else:
        source, target, moved, fraction = _ways(span, len(fabric.torus.shape))
    sent = parts[source, target] * fraction
    some = np.flatnonzero(sent)
    source, target, moved, sent = source[some], target[some], moved[some], sent[some]
    groups = len(chips)
    starts, ends = chips[:, source].ravel(), chips[:, target].ravel()
    flow, link = walk(fabric, starts, np.tile(moved, (groups, 1)))
    return _flows(starts, ends, flow, link, np.tile(sent, groups), hop_ps)


def _messages(fabric: Fabric, chips: Ints, parts: Floats, hop_ps: float) -> FlowRound:
    """The flows of groups without regular shape, each over the route of a message."""
    source, target = np.nonzero(parts * ~np.eye(len(parts), dtype=bool))
    starts, ends = chips[:, source].ravel(), chips[:, target].ravel()
    cores = fabric.network.slice_.devices_per_chip
    found = routes(fabric, starts * cores, ends * cores)
    sent = np.tile(parts[source, target], len(chips))
    return _flows(starts, ends, found.message, found.link, sent, hop_ps)


def _flows(
    starts: Ints, ends: Ints, flow: Ints, link: Ints, sent: Floats, hop_ps: float
) -> FlowRound:
    latency_ps = np.rint(np.bincount(flow, minlength=len(sent)) * hop_ps).astype(np.int64)
    pattern = FlowPattern.of(starts, ends, latency_ps, flow, link, np.ones(len(flow)))
    return FlowRound(pattern, sent)


def _twisted_ways(torus: Torus) -> tuple[Ints, Ints, Ints, Floats]:
    ways, chips = shortest_ways(torus), torus.chips
    far = np.flatnonzero(ways.offset != 0)
    source = np.repeat(np.arange(chips), len(far))
    # The chip at an offset is the one whose offset from the source it is.
    table = np.empty((chips, chips), dtype=np.int64)
    for start in range(chips):
        everyone = np.arange(chips)
        table[start, offsets(torus, np.full(chips, start), everyone)] = everyone
    target = table[:, ways.offset[far]].ravel()
    moved = np.tile(ways.hops[far], (chips, 1))
    return source, target, moved, np.tile(ways.fraction[far], chips)


def _ways(span: Span, axes: int) -> tuple[Ints, Ints, Ints, Floats]:
    """Source and target position, hops along the physical axes, and share of each way."""
    count = span.chips_per_slice
    source, target = (grid.ravel() for grid in np.divmod(np.arange(count**2), count))
    source, target = source[source != target], target[source != target]
    moved = np.zeros((len(source), axes), dtype=np.int64)
    fraction, below = np.ones(len(source)), 1
    for axis in span.axes:
        length = axis.length
        hops = target // below % length - source // below % length
        below *= length
        tied = np.zeros(0, dtype=np.int64)
        if axis.wrap:
            hops = (hops + (length - 1) // 2) % length - (length - 1) // 2
            tied = np.flatnonzero(2 * hops == length)
        fraction[tied] /= 2
        moved[:, axis.axis] += hops * axis.stride
        # Half-way round a ring is reached both ways.
        other = moved[tied].copy()
        other[:, axis.axis] -= 2 * hops[tied] * axis.stride
        source, target = np.append(source, source[tied]), np.append(target, target[tied])
        moved, fraction = np.vstack([moved, other]), np.append(fraction, fraction[tied])
    return source, target, moved, fraction
