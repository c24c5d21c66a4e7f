# SPDX-License-Identifier: Apache-2.0
"""Routes of messages: axis by axis, the shorter way round, on links by number.

This is dimension-ordered routing, which cannot deadlock and which the compiler's default
routing is taken to be. A message half-way round a ring goes up. Messages to other slices go
by the ports of the two chips. Around a link that is down goes the shortest way left.
Adaptive routing is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtpu_core.ici.fabric import Fabric, Ints, neighbour_table
from torchtpu_core.ici.lattice import first_way
from torchtpu_core.ici.torus import Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The links of messages, as pairs in no order.

    Attributes:
        message: `[H]`, which message.
        link: `[H]`, a link it crosses.
        hops: `[M]`, hops of each message; a port counts none.
        ports: `[M]`, whether it goes through the data centre network.
        within: `[M]`, whether it stays on its chip.
    """

    message: Ints
    link: Ints
    hops: Ints
    ports: Ints
    within: Ints


def displacements(torus: Torus, sources: Ints, targets: Ints) -> Ints:
    """Signed hops along each axis of a shortest route, `[M, D]`."""
    if torus.twisted:
        return first_way(torus)[offsets(torus, sources, targets)]
    result = np.empty((len(sources), len(torus.shape)), dtype=np.int64)
    for axis, length in enumerate(torus.shape):
        below = int(np.prod(torus.shape[:axis], dtype=np.int64))
        moved = (targets // below) % length - (sources // below) % length
        if torus.wrap[axis]:
            moved = moved % length
            moved = np.where(moved > length // 2, moved - length, moved)
        result[:, axis] = moved
    return result


def offsets(torus: Torus, sources: Ints, targets: Ints) -> Ints:
    """The chip that is to chip 0 as each target is to its source, on a torus that wraps."""
    lengths = np.array(torus.shape)
    below = np.concatenate([[1], np.cumprod(lengths)[:-1]])
    moved = targets[:, None] // below % lengths - sources[:, None] // below % lengths
    for axis, length in enumerate(torus.shape):
        turns, moved[:, axis] = np.divmod(moved[:, axis], length)
        # Once round an axis is the same as its twist.
        moved += turns[:, None] * np.array(torus.twist_of(axis))
    result: Ints = moved @ below
    return result


def routes(fabric: Fabric, senders: Ints, receivers: Ints) -> Routes:
    """The routes of messages between devices numbered slice by slice, `[M]` each."""
    chips, cores = fabric.torus.chips, fabric.network.slice_.devices_per_chip
    sources, targets = senders // cores, receivers // cores
    outside = sources // chips != targets // chips
    within = sources == targets
    moved = displacements(fabric.torus, sources % chips, targets % chips)
    moved[outside] = 0
    message, link = walk(fabric, sources, moved)
    hops = np.bincount(message, minlength=len(sources))
    far, near = np.flatnonzero(outside), np.flatnonzero(within)
    return Routes(
        message=np.concatenate([message, far, far, near]),
        link=np.concatenate(
            [
                link,
                fabric.port_out(sources[far]),
                fabric.port_in(targets[far]),
                fabric.die(senders[near]),
            ]
        ),
        hops=hops,
        ports=outside.astype(np.int64),
        within=within.astype(np.int64),
    )


def walk(fabric: Fabric, sources: Ints, moved: Ints) -> tuple[Ints, Ints]:
    """Messages and the links that they cross, axis by axis."""
    table, chips = neighbour_table(fabric.torus), fabric.torus.chips
    place, base = sources % chips, sources // chips * chips
    messages, links = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for axis in np.flatnonzero(moved.any(axis=0)).tolist():
        column = 2 * axis + (moved[:, axis] < 0)
        for step in range(int(np.abs(moved[:, axis]).max(initial=0))):
            going = np.flatnonzero(np.abs(moved[:, axis]) > step)
            messages.append(going)
            links.append((base[going] + place[going]) * table.shape[1] + column[going])
            place[going] = table[place[going], column[going]]
    return _around(fabric, np.concatenate(messages), np.concatenate(links))


def _around(fabric: Fabric, message: Ints, link: Ints) -> tuple[Ints, Ints]:
    """The same with detours in place of links that are down."""
    for down, way in fabric.detours().items() if fabric.network.faults else ():
        hit = np.flatnonzero(link % fabric.per_slice == down)
        base = link[hit] - down
        message = np.concatenate([np.delete(message, hit), np.repeat(message[hit], len(way))])
        link = np.concatenate([np.delete(link, hit), (base[:, None] + way).ravel()])
    return message, link
