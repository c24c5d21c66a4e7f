# SPDX-License-Identifier: Apache-2.0
"""Schedules as flows on the links of a slice.

Rounds that send the same way over the same links, as the steps round a ring do, share one
pattern; they differ in sizes at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.ici.fabric import Fabric, Ints
from torchtpu_core.ici.fluid import FlowPattern, FlowRound
from torchtpu_core.ici.rounds import Move
from torchtpu_core.ici.routing import routes, walk
from torchtpu_core.ici.schedules import Lane
from torchtpu_core.ici.span import NO_AXIS
from torchtpu_core.units import PS_PER_S

Key = tuple[object, ...]


@dataclass(slots=True)
class LaneMaker:
    """Flows of all chips of all groups, for one simulation.

    Attributes:
        fabric: the links of a slice.
    """

    fabric: Fabric
    _patterns: dict[Key, FlowPattern] = field(default_factory=dict)
    _rounds: dict[Key, FlowRound] = field(default_factory=dict)

    def lane(self, lane: Lane, chips: Ints) -> list[FlowRound]:
        """The rounds of a lane; `chips` are those of each group, `[groups, P]`."""
        return [self._round(moves, lane.unit_bytes, chips) for moves in lane.rounds]

    def _round(self, moves: Sequence[Move], unit_bytes: float, chips: Ints) -> FlowRound:
        where = tuple(_key(move) for move in moves)
        sizes = tuple(move.units * unit_bytes for move in moves)
        if (where, sizes) not in self._rounds:
            if where not in self._patterns:
                self._patterns[where] = _joined([self._pattern(move, chips) for move in moves])
            flows = [len(move.sources) * len(chips) for move in moves]
            self._rounds[where, sizes] = FlowRound(self._patterns[where], np.repeat(sizes, flows))
        return self._rounds[where, sizes]

    def _pattern(self, move: Move, chips: Ints) -> FlowPattern:
        axis, fabric = move.frame.axis, self.fabric
        source, target = chips[:, move.sources].ravel(), chips[:, move.targets].ravel()
        if axis.axis == NO_AXIS:
            cores = fabric.network.slice_.devices_per_chip
            found = routes(fabric, source * cores, target * cores)
            flow, link, hops = found.message, found.link, found.hops
        else:
            moved = np.zeros((len(source), len(fabric.torus.shape)), dtype=np.int64)
            moved[:, axis.axis] = move.way * axis.stride
            flow, link = walk(fabric, source, moved)
            hops = np.bincount(flow, minlength=len(source))
        hop_ps = fabric.network.link.hop_latency_s * PS_PER_S
        latency_ps = np.rint(hops * hop_ps).astype(np.int64)
        return FlowPattern.of(source, target, latency_ps, flow, link, np.ones(len(flow)))


def _key(move: Move) -> Key:
    axis = move.frame.axis
    ends = move.sources.tobytes(), move.targets.tobytes()
    return axis.axis, axis.stride, move.way, *ends


def _joined(parts: Sequence[FlowPattern]) -> FlowPattern:
    """The flows of several moves as one pattern."""
    first = np.cumsum([0, *(len(part.source) for part in parts[:-1])])
    of_pair = [part.pair_flow + base for part, base in zip(parts, first, strict=True)]
    return FlowPattern.of(
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.latency_ps for part in parts]),
        np.concatenate(of_pair),
        np.concatenate([part.pair_link for part in parts]),
        np.concatenate([part.pair_weight for part in parts]),
    )
