# SPDX-License-Identifier: Apache-2.0
"""The schedule of a step on the units of one device, as records with times."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from torchtpu_core.plan.links import Link, Sent, Traffic
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
class Schedule:
    """A step on the units of one device.

    Attributes:
        placed: records in the order in which they were placed.
        step_s: simulated seconds of the step.
        exposed_s: seconds in which the core waits for, or drives, communication.
        hidden_s: seconds of communication behind compute.
        sent: how often each collective runs.
        dcn_bytes: bytes that a chip sends to other slices.
        critical: parts of the critical path in seconds, by name.
        traffic: what every link carries, once that is asked for.
    """

    placed: list[Placed] = field(default_factory=list)
    step_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    sent: Counter[Sent] = field(default_factory=Counter)
    dcn_bytes: float = 0.0
    critical: dict[str, float] = field(default_factory=dict)
    traffic: Traffic | None = None

    @property
    def links(self) -> list[Link]:
        """Links by axis, the busiest first."""
        return self.traffic.kinds if self.traffic else []

    @property
    def busiest(self) -> Link:
        """The link that is busy for the largest part of the step."""
        return self.links[0] if self.links else Link()
