# SPDX-License-Identifier: Apache-2.0
"""What a program does, counted: the input of every cost model.

A `ProgramCost` is per device and says nothing of time. Costs add and multiply, so
that a called function or a loop body is counted once and scaled.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchtpu_core.ici.kinds import CollectiveKind as CollectiveKind


class Precision(enum.StrEnum):
    """The precision that a program asks of a float32 matrix product."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


@dataclass(frozen=True, slots=True)
class MatmulClass:
    """Matrix work that runs at one rate.

    Attributes:
        dtype: the wider operand's element type as StableHLO writes it, such as ``bf16``.
        precision: matters for ``f32`` only.
    """

    dtype: str
    precision: Precision = Precision.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: which one.
        operand_bytes: bytes that a device puts in.
        result_bytes: bytes that a device gets out.
        groups: groups of devices; of a permute, its (source, target) pairs. Empty if all
            devices of the program are one group.
        count: how often it runs.
    """

    kind: CollectiveKind
    operand_bytes: int
    result_bytes: int
    groups: tuple[tuple[int, ...], ...] = ()
    count: int = 1

    @property
    def group_size(self) -> int | None:
        """Devices of the largest group; None if it is all devices of the program."""
        return max(map(len, self.groups)) if self.groups else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """The work of one run of a program on one device.

    Attributes:
        matmul_flops: by class of matrix work; a multiply and an add are 2.
        elementwise_flops: operations on single elements, transcendental ones apart.
        transcendentals: elements of exp, log, tanh, division-free roots and the like.
        bytes_hbm: bytes read from and written to HBM.
        collectives: in program order.
        devices: devices the program runs on.
        unknown_loops: loops counted once because their trip count is not evident.
    """

    matmul_flops: Mapping[MatmulClass, int] = field(default_factory=dict)
    elementwise_flops: int = 0
    transcendentals: int = 0
    bytes_hbm: int = 0
    collectives: tuple[Collective, ...] = ()
    devices: int = 1
    unknown_loops: int = 0

    @property
    def flops(self) -> int:
        """All floating-point and integer operations, transcendental ones as one each."""
        return sum(self.matmul_flops.values()) + self.elementwise_flops + self.transcendentals

    def __add__(self, other: ProgramCost) -> ProgramCost:
        matmul = Counter(self.matmul_flops)
        matmul.update(other.matmul_flops)
        return ProgramCost(
            matmul_flops=dict(matmul),
            elementwise_flops=self.elementwise_flops + other.elementwise_flops,
            transcendentals=self.transcendentals + other.transcendentals,
            bytes_hbm=self.bytes_hbm + other.bytes_hbm,
            collectives=self.collectives + other.collectives,
            devices=max(self.devices, other.devices),
            unknown_loops=self.unknown_loops + other.unknown_loops,
        )

    def times(self, count: int) -> ProgramCost:
        """The cost of running this `count` times; loops of unknown length stay counted."""
        if count == 1:
            return self
        return replace(
            self,
            matmul_flops={kind: flops * count for kind, flops in self.matmul_flops.items()},
            elementwise_flops=self.elementwise_flops * count,
            transcendentals=self.transcendentals * count,
            bytes_hbm=self.bytes_hbm * count,
            collectives=tuple(
                replace(collective, count=collective.count * count)
                for collective in self.collectives
                if count
            ),
        )
