# SPDX-License-Identifier: Apache-2.0
"""What every single link of a slice carries in a step, and which is the busiest.

Loads follow from the schedules of the collectives, all groups of a kind together, and do not
depend on when they run. Slices of a job are alike, so one is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtpu_core.errors import PlanError, TorchTPUError
from torchtpu_core.ici.closed_form import ClosedForm
from torchtpu_core.ici.fabric import ABSENT, Floats, neighbour_table
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.link_level import LinkLevel
from torchtpu_core.ici.messages import loads_of
from torchtpu_core.ici.model import CollectiveTime, Message
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.span import NO_AXIS
from torchtpu_core.plan.collectives import all_groups
from torchtpu_core.plan.records import Parts

#: Links whose loads differ by less than this part are called alike.
ALIKE = 1e-6

#: Groups without regular shape whose links are followed one by one.
MOST_IRREGULAR = 64

#: Kind, bytes that a rank puts in or those of all ranks, and ranks of a collective.
Sent = tuple[str, int | Parts, tuple[int, ...]]


@dataclass(slots=True)
class Link:
    """The links along one physical axis, or to the data centre network.

    Attributes:
        name: the physical axis, or ``dcn``.
        sent_bytes: bytes in the step on its busiest link, in one direction.
        load: part of the step's time in which that link is busy.
        count: links of this kind in all slices, each direction by itself.
        source: chip that sends on the busiest one; None for ``dcn``.
        target: chip that receives.
        alike: links of the slice that are as busy.
    """

    name: str = ""
    sent_bytes: float = 0.0
    load: float = 0.0
    count: int = 0
    source: int | None = None
    target: int | None = None
    alike: int = 1

    @property
    def which(self) -> str:
        """The busiest link, for people."""
        if self.source is None:
            return self.name
        others = f", and {self.alike - 1:,} alike" if self.alike > 1 else ""
        return f"chip {self.source} to chip {self.target} ({self.name}{others})"


@dataclass(slots=True)
class Traffic:
    """Bytes of a step on every link of one slice, and in which part of it each is busy.

    Attributes:
        sent_bytes: `[chips, 2 axes]`, up and down each axis.
        busy: `[chips, 2 axes]`, part of the step; infinite on links that are down.
        left: `[chips, 2 axes]`, what is left of each link's rate; 0 where it is down, not a
            number where there is no link.
        kinds: links by axis, the busiest first.
    """

    sent_bytes: Floats
    busy: Floats
    left: Floats
    kinds: list[Link] = field(default_factory=list)


def traffic_of(
    sent: Counter[Sent] | Sequence[tuple[Counter[Sent], Sequence[int]]],
    dcn_bytes: float,
    step_s: float,
    network: Network,
) -> Traffic:
    """The traffic of a step's collectives.

    Args:
        sent: how often each runs; where ranks differ, for each role, with its ranks. A role
            then counts for the links of its own chips.
        dcn_bytes: bytes that a chip sends to other slices.
        step_s: the step.
        network: all slices, with their faults.
    """
    torus = network.slice_.torus
    table = neighbour_table(torus)
    total = np.zeros(table.shape)
    roles = [(sent, range(network.devices))] if isinstance(sent, Counter) else sent
    for counts, ranks in roles:
        chips = np.zeros((torus.chips, 1))
        cores = network.slice_.devices_per_chip
        for rank in ranks:
            chips[rank // cores % torus.chips] = 1.0
        for (kind, size, group), times in counts.items():
            total += times * chips * _loads(kind, size, group, network)
    left = np.where(table == ABSENT, np.nan, 1.0)
    for link, part in network.faults.affected(torus).items():
        left[link.source, 2 * link.axis + (link.step < 0)] = part
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = total / (left * network.link.bytes_per_s * step_s)
    busy = np.where(total > 0, busy, 0.0)
    made = Traffic(total, busy, left)
    for axis in torus.axes:
        columns = slice(2 * axis, 2 * axis + 2)
        if total[:, columns].any():
            made.kinds.append(_busiest(made, axis, table, network.slices))
    if dcn_bytes and network.dcn:
        load = dcn_bytes / network.dcn.bytes_per_s / step_s
        made.kinds.append(Link("dcn", dcn_bytes, load, network.chips))
    made.kinds.sort(key=lambda link: -link.load)
    return made


def _busiest(made: Traffic, axis: int, table: np.ndarray, slices: int) -> Link:
    columns = slice(2 * axis, 2 * axis + 2)
    busy = made.busy[:, columns]
    chip, way = (int(place) for place in np.unravel_index(busy.argmax(), busy.shape))
    return Link(
        name=f"axis {axis}",
        sent_bytes=float(made.sent_bytes[chip, 2 * axis + way]),
        load=float(busy[chip, way]),
        count=int((table[:, columns] != ABSENT).sum()) * slices,
        source=chip,
        target=int(table[chip, 2 * axis + way]),
        alike=int((busy >= busy[chip, way] * (1 - ALIKE)).sum()),
    )


def _loads(kind: str, size: int | Parts, group: tuple[int, ...], network: Network) -> Floats:
    """Bytes on every link of a slice in one run of a collective, all groups of its kind."""
    torus = network.slice_.torus
    shape = torus.chips, 2 * len(torus.shape)
    if len(group) < 2 or not size:
        return np.zeros(shape)
    if isinstance(size, Parts):
        return _uneven_loads(size, group, network)
    try:
        groups = all_groups(group, network.devices)
    except PlanError:
        groups = [list(group)]  # what the others do is not known
    if kind == CollectiveKind.PERMUTE:
        loads = loads_of(network, messages_of(group, size, network))
        return loads[: torus.chips * shape[1]].reshape(shape)
    span = span_of(group, network)
    if span.members is not None and len(groups) > MOST_IRREGULAR:
        return _by_axis(kind, size, group, network, shape)
    spans = [span] if span.members is None else [span_of(one, network) for one in groups]
    model, total = LinkLevel(network), np.zeros(shape)
    try:
        for one in spans:
            total += model.link_loads(CollectiveKind(kind), size, one)
    except TorchTPUError:
        return _by_axis(kind, size, group, network, shape)
    return total


def messages_of(ends: tuple[int, ...], size: float, network: Network) -> list[Message]:
    """A message from one rank to another, and those of all pairs that are alike."""
    try:
        pairs = all_groups(ends[:2], network.devices)
    except PlanError:
        pairs = [sorted(ends[:2])]
    if ends[0] > ends[1]:
        pairs = [pair[::-1] for pair in pairs]
    return [Message(pair[0], pair[1], float(size)) for pair in pairs]


def _by_axis(
    kind: str, size: int, group: tuple[int, ...], network: Network, shape: tuple[int, int]
) -> Floats:
    """The closed form's bytes on the busiest link of an axis, on all of its links.

    For what is too much to follow link by link.
    """
    found = ClosedForm(network).collective_time(CollectiveKind(kind), size, span_of(group, network))
    return _on_axes(found, network, shape)


def _uneven_loads(parts: Parts, group: tuple[int, ...], network: Network) -> Floats:
    """Bytes of an uneven all-to-all on every link, or the most of its axis where it is too big."""
    shape = network.slice_.torus.chips, 2 * len(network.slice_.torus.shape)
    try:
        return LinkLevel(network).uneven_loads(group, parts.sizes)
    except TorchTPUError:
        return _on_axes(ClosedForm(network).uneven_time(group, parts.sizes), network, shape)


def _on_axes(found: CollectiveTime, network: Network, shape: tuple[int, int]) -> Floats:
    """The bytes on the busiest link of an axis, on all of its links."""
    loads = np.zeros(shape)
    for axis, sent in found.axis_bytes.items():
        columns = slice(None) if axis == NO_AXIS else slice(2 * axis, 2 * axis + 2)
        loads[:, columns] = sent
    return np.where(neighbour_table(network.slice_.torus) == ABSENT, 0.0, loads)
