# SPDX-License-Identifier: Apache-2.0
"""When the instructions of a scheduled program ran, and on which unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchtpu_core.ici.model import CollectiveTime
from torchtpu_core.xla_tpu.hlo import Instruction

#: What bounds spans that are made of others.
OUTER = ("loop", "call")
CORE, DMA, ICI, DCN = "TensorCore", "DMA", "ICI", "DCN"


@dataclass(slots=True)
class Span:
    """When one instruction ran on one unit.

    Attributes:
        instruction: what ran.
        unit: TensorCore, DMA, ICI or DCN.
        start_s: simulated start.
        end_s: simulated end.
        bound: what took the time.
        flops: of its products.
        hbm_bytes: that it moves.
        runs: how often, of a loop's body.
        collective: its network time, of a collective.
        group: the first group of devices, of a collective.
        moved_bytes: that a device puts in, of a collective.
    """

    instruction: Instruction
    unit: str
    start_s: float
    end_s: float
    bound: str
    flops: float = 0.0
    hbm_bytes: float = 0.0
    runs: int = 1
    collective: CollectiveTime | None = None
    group: tuple[int, ...] = ()
    moved_bytes: int = 0


@dataclass(slots=True)
class Run:
    """A program's simulated run.

    Attributes:
        spans: in the order of the schedule.
        step_s: simulated seconds.
        waited_s: seconds in which the core waits, by unit or opcode of what it waits for.
        unknown: opcodes whose work is not known, with how often they occur.
    """

    spans: list[Span] = field(default_factory=list)
    step_s: float = 0.0
    waited_s: dict[str, float] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def moved_bytes(self) -> float:
        """Bytes that all instructions move through HBM."""
        return sum(one.hbm_bytes * one.runs for one in self.spans if one.bound not in OUTER)
