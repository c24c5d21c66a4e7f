# SPDX-License-Identifier: Apache-2.0
"""The schedule of a step on the units of one device, as records with times."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from torchtpu_core.plan.records import Op


class Unit(enum.StrEnum):
    """A part of the device that works by itself."""

    CORE = "TensorCore"
    DMA = "copies to and from VMEM"
    ICI = "ICI"
    DCN = "DCN"


@dataclass(slots=True)
class Placed:
    """When one operator ran on one unit.

    Attributes:
        op: the operator.
        index: its place in the recording.
        unit: where it ran.
        start_s: simulated start.
        end_s: simulated end.
        bound: matrix, vector, hbm or network: what took the time.
        flops: operations of matrix products and attention.
        hbm_bytes: bytes it moves through HBM after fusion.
    """

    op: Op
    index: int
    unit: Unit
    start_s: float
    end_s: float
    bound: str
    flops: float = 0.0
    hbm_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(slots=True)
class Link:
    """Traffic of the links along one physical axis, or to the data centre network.

    All ranks do the same, so that the links of an axis are alike but for the ends of lines.

    Attributes:
        name: the physical axis, or ``dcn``.
        sent_bytes: bytes in the step on its busiest link, in one direction.
        load: part of the step's time in which that link is busy.
        count: links of this kind in all slices, each direction by itself.
    """

    name: str = ""
    sent_bytes: float = 0.0
    load: float = 0.0
    count: int = 0


@dataclass(slots=True)
class Schedule:
    """A step on the units of one device.

    Attributes:
        placed: records in the order in which they were placed.
        step_s: simulated seconds of the step.
        exposed_s: seconds in which the core waits for, or drives, communication.
        hidden_s: seconds of communication behind compute.
        axis_bytes: bytes on the busiest link of each physical axis.
        critical: parts of the critical path in seconds, by name.
        links: links by axis, the busiest first.
    """

    placed: list[Placed] = field(default_factory=list)
    step_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    axis_bytes: dict[str, float] = field(default_factory=dict)
    critical: dict[str, float] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    @property
    def busiest(self) -> Link:
        """The link that is busy for the largest part of the step."""
        return self.links[0] if self.links else Link()
