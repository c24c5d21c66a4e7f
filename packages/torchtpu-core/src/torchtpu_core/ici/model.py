# SPDX-License-Identifier: Apache-2.0
"""The interface of the network models: a collective in, a simulated time out.

Two models stand behind it: `ClosedForm` adds up rounds by formula, in microseconds of the
host's time; `LinkLevel` runs the explicit schedule over links that flows share. They are
made from the same algorithm, and agree where no two flows share a link; where they do, the
link-level time is longer.

Not modelled by either: the time to start a collective, the reading and adding of operands
in HBM, and traffic of other collectives unless it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.kinds import CollectiveKind, Engine
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.uneven import Sizes
from torchtpu_core.units import PS_PER_S


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes that one device sends to another, devices numbered slice by slice.

    Attributes:
        source: device that sends.
        target: device that receives.
        size_bytes: how much.
    """

    source: int
    target: int
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Simulated time of one collective, and what it puts on the network.

    Attributes:
        kind: the collective.
        time_ps: from the first byte sent to the last received, all groups together.
        latency_ps: the part of it that hops take.
        busiest_link_bytes: bytes on the ICI link, in one direction, that carries most.
        busiest_link: which that is, such as ``axis 0``, ``dcn`` or ``die``.
        axis_bytes: by physical axis, bytes on its busiest link in one direction.
        dcn_bytes: bytes that a chip sends to other slices.
        phases: parts that begin one after another, each with chips of its own: a sum over two
            axes of a torus has four. What it takes to begin one is not in `time_ps`.
        schedule: the algorithm, by XLA:TPU's name where it has one.
        engine: the unit that drives it.
        model: the network model that answered.
    """

    kind: CollectiveKind
    time_ps: int
    latency_ps: int = 0
    busiest_link_bytes: int = 0
    busiest_link: str = ""
    axis_bytes: dict[int, int] = field(default_factory=dict)
    dcn_bytes: int = 0
    phases: int = 1
    schedule: str = ""
    engine: Engine = Engine.TENSOR_CORE
    model: str = ""

    @property
    def time_s(self) -> float:
        """`time_ps` in seconds."""
        return self.time_ps / PS_PER_S


class NetworkModel(Protocol):
    """What prices collectives; a plugin may bring its own (``torchtpu_network_model``)."""

    @property
    def network(self) -> Network:
        """What the collectives run on."""

    def collective_time(
        self,
        kind: CollectiveKind,
        operand_bytes: float,
        span: Span,
        *,
        offload: bool | None = None,
    ) -> CollectiveTime:
        """Simulated time of a collective that all groups of a mesh axis run at once.

        Args:
            kind: any but permute, ragged all-to-all and send, which are `messages_time`.
            operand_bytes: bytes that one device puts in: of an all-gather its shard, of a
                reduce-scatter and an all-reduce the array, of an all-to-all all its parts.
            span: what each group spans.
            offload: whether SparseCores drive it; None for the compiler's default.
        """

    def messages_time(
        self, messages: Sequence[Message], kind: CollectiveKind = CollectiveKind.PERMUTE
    ) -> CollectiveTime:
        """Simulated time of messages that start together: a permute, a ragged all-to-all."""

    def uneven_time(self, group: Sequence[int], sizes: Sizes) -> CollectiveTime:
        """Simulated time of an all-to-all of uneven parts that all groups alike run at once.

        Other than messages, parts go all shortest ways, as those of an even all-to-all do.

        Args:
            group: the devices of one of the groups.
            sizes: `[n, n]`, bytes that each of them sends to each.

        Raises:
            TorchTPUError: the sizes do not fit the group, or there are too many.
        """


_MESSAGES = (CollectiveKind.PERMUTE, CollectiveKind.RAGGED_ALL_TO_ALL, CollectiveKind.SEND)


def ragged_messages(group: Sequence[int], sizes: Sequence[Sequence[float]]) -> list[Message]:
    """The messages of a ragged all-to-all.

    Args:
        group: the devices.
        sizes: `[n, n]`, bytes that each of them sends to each; what a device keeps is free.

    >>> ragged_messages([4, 5], [[7, 1], [2, 9]])
    [Message(source=4, target=5, size_bytes=1), Message(source=5, target=4, size_bytes=2)]
    """
    return [
        Message(source, target, size)
        for source, row in zip(group, sizes, strict=True)
        for target, size in zip(group, row, strict=True)
        if source != target and size > 0
    ]


def array_bytes(kind: CollectiveKind, operand_bytes: float, devices: int) -> float:
    """V: bytes of the whole array, from what one device of a group puts in.

    Of an all-gather the gathered array, of an all-to-all the parts of one device.

    Raises:
        TorchTPUError: the collective is a set of messages, which has no array.
    """
    if kind in _MESSAGES:
        raise TorchTPUError(
            f"A {kind} is a set of messages, not one array for all: price it with messages_time, "
            "one Message per pair of devices."
        )
    return operand_bytes * devices if kind is CollectiveKind.ALL_GATHER else operand_bytes


def network_model(
    where: Slice | Network, slices: int = 1, *, link_level: bool = False
) -> NetworkModel:
    """The network model of a slice, or of several joined by the data centre network.

    Args:
        where: the slice, or a network made with other rates or with faults.
        slices: how many; ignored where a network is given.
        link_level: whether links are modelled one by one; closed forms otherwise.
    """
    from torchtpu_core.ici.closed_form import ClosedForm
    from torchtpu_core.ici.link_level import LinkLevel

    network = where if isinstance(where, Network) else Network.of(where, slices)
    return LinkLevel(network) if link_level else ClosedForm(network)
