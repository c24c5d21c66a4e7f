# SPDX-License-Identifier: Apache-2.0
"""Messages that start together: permutes, ragged all-to-all, point-to-point.

The closed form of a set of messages is a bound that is exact where none share a link: the
busiest link's bytes at its rate, after the hops of the longest route.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtpu_core.ici.algorithms import Algorithm, choose
from torchtpu_core.ici.fabric import Fabric, Floats
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import CollectiveTime, Message
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.routing import Routes, routes
from torchtpu_core.ici.span import Span
from torchtpu_core.units import PS_PER_S


def routed(fabric: Fabric, messages: Sequence[Message]) -> tuple[Routes, Floats]:
    """Routes and sizes of messages."""
    ends = np.array([(m.source, m.target) for m in messages], dtype=np.int64).reshape(-1, 2)
    sizes = np.array([m.size_bytes for m in messages], dtype=np.float64)
    return routes(fabric, ends[:, 0], ends[:, 1]), sizes


def latencies_ps(network: Network, found: Routes) -> Floats:
    """Picoseconds that the first byte of each message takes."""
    hop_ps = network.link.hop_latency_s * PS_PER_S
    port_ps = network.dcn.hop_latency_s * PS_PER_S if network.dcn else 0.0
    return found.hops * hop_ps + found.ports * port_ps


def messages_bound(
    network: Network, messages: Sequence[Message], kind: CollectiveKind, model: str
) -> CollectiveTime:
    """The closed form of messages that start together."""
    messages = [message for message in messages if message.size_bytes > 0]
    name = algorithm_of(kind, network).name
    if not messages:
        return CollectiveTime(kind=kind, time_ps=0, schedule=name, model=model)
    fabric = Fabric(network)
    found, sizes = routed(fabric, messages)
    if found.within.any():
        network.needed_die()
    load: Floats = np.bincount(found.link, sizes[found.message], fabric.links).astype(np.float64)
    ici = busiest_by_axis(fabric, load)
    capacity = fabric.capacity()
    used = np.flatnonzero(load)
    latency = latencies_ps(network, found)
    # Each message by itself, and each link with all of its bytes after the shortest way to it.
    alone = np.zeros(len(sizes))
    np.maximum.at(alone, found.message, sizes[found.message] / capacity[found.link])
    first = np.full(fabric.links, np.inf)
    np.minimum.at(first, found.link, latency[found.message])
    by_link = load[used] / capacity[used] + first[used]
    time_ps = max(float((alone + latency).max()), float(by_link.max()))
    return CollectiveTime(
        kind=kind,
        time_ps=round(time_ps),
        latency_ps=round(float(latency.max())),
        busiest_link_bytes=round(float(ici.max())),
        busiest_link=fabric.label(int(used[by_link.argmax()])),
        axis_bytes={axis: round(float(size)) for axis, size in enumerate(ici) if size},
        dcn_bytes=round(float(load[fabric.ici_links :][: network.chips].max())),
        schedule=name,
        model=model,
    )


def loads_of(network: Network, messages: Sequence[Message]) -> Floats:
    """Bytes on every link of a job, `[links]`, numbered as `ici.fabric` does."""
    fabric = Fabric(network)
    found, sizes = routed(fabric, messages)
    load: Floats = np.bincount(found.link, sizes[found.message], fabric.links).astype(np.float64)
    return load


def busiest_by_axis(fabric: Fabric, load: Floats) -> Floats:
    """Bytes on the busiest link of each axis, from those on every link, `[links]`."""
    axes = len(fabric.torus.shape)
    result: Floats = load[: fabric.ici_links].reshape(-1, axes, 2).max(axis=(0, 2))
    return result


def algorithm_of(kind: CollectiveKind, network: Network) -> Algorithm:
    """The algorithm of messages."""
    return choose(kind, 0, Span(axes=()), network.slice_.chip)
