# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a script that runs without values: operators, storages, data reads.

Plain data, filled by `plan.recorder` and read by pricing and reports.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Gradients of embeddings with a row for each row of the table.
DENSE_GRADIENTS = frozenset(
    {"embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"}
)
#: The name of a value that the host reads to check the arguments of a distribution.
CHECK = "check of a distribution"
#: Operators of which the second operand is the rows that are looked up.
LOOK_UPS = DENSE_GRADIENTS | {"embedding"}


class Phase(enum.StrEnum):
    """The part of a step that an operator belongs to.

    What comes between a backward pass and the optimizer, as gradient clipping does, is GRADIENTS.
    """

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"


class Work(enum.StrEnum):
    """What kind of work an operator is."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    MOVE = "move"
    COLLECTIVE = "collective"
    HOST = "host"


class Category(enum.StrEnum):
    """What a storage in HBM holds."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    GATHERED = "gathered weights"
    HELD = "buffers, other state"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"

    @classmethod
    def varying(cls) -> tuple[Category, ...]:
        """What may grow with the batch; caches of keys and values are among what is held."""
        return cls.HELD, cls.ACTIVATIONS, cls.TEMPORARIES


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Bytes that each rank of a group sends to each, `[n, n]`; compared by identity."""

    sizes: NDArray[np.float64]


@dataclass(slots=True)
class Op:
    """One operator of one rank.

    Attributes:
        name: the operator without its namespace and overload.
        work: what kind of work it is.
        phase: the part of the step.
        line: the user's ``file:line``.
        reads: storages it reads.
        writes: storages it writes.
        read_bytes: bytes of each operand, in the order of `reads`.
        write_bytes: bytes of each result, in the order of `writes`.
        products: matrix products as (batch, m, k, n).
        scores: pairs of query and key of attention, over all heads.
        head_dims: widths of keys and of values.
        gradient: of attention, whether it is the backward kernel.
        again: of attention's gradient, the part of its products that compute scores again.
        flash: of attention, whether kernels compute it without its scores in HBM.
        kernel_bytes: of attention, what its kernels, or its scores, move through HBM.
        drawn: random numbers that it draws.
        identity: whether it copies the bytes of a whole storage to a whole storage.
        approximate: of GELU, whether it is computed by tanh.
        strided: of a convolution, or its gradients, whether it steps over pixels.
        dtype: element type of the operands, as `simulator.rates` names it.
        collective: its kind, for a collective.
        group: ranks that take part.
        moved_bytes: bytes that this rank puts into the collective.
        sent: of an all-to-all, bytes that go to each rank of the group.
        received: of an all-to-all, bytes that come from each.
        parts: of an uneven all-to-all, those of all ranks.
        looked_up: rows that an embedding looks up, or whose gradients it sums.
        samples: images, or other samples, that a convolution or a linear layer reads.
        differentiable: whether gradients were enabled.
        host_bytes: bytes to the host and back, if it has no form on the device.
        peer: rank that a message goes to or comes from; -1 for other operators.
    """

    name: str
    work: Work
    phase: Phase
    line: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    read_bytes: tuple[int, ...] = ()
    write_bytes: tuple[int, ...] = ()
    products: tuple[tuple[int, int, int, int], ...] = ()
    scores: float = 0.0
    head_dims: tuple[int, int] = (0, 0)
    gradient: bool = False
    again: float = 0.0
    flash: bool = False
    approximate: bool = False
    strided: bool = False
    kernel_bytes: float = 0.0
    drawn: float = 0.0
    identity: bool = False
    dtype: str = "bf16"
    collective: str = ""
    group: tuple[int, ...] = ()
    moved_bytes: int = 0
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    parts: Parts | None = None
    looked_up: int = 0
    samples: int = 0
    differentiable: bool = True
    host_bytes: int = 0
    peer: int = -1


@dataclass(slots=True)
class Block:
    """One storage of the device: bytes from the operator that made it to its end.

    Attributes:
        size_bytes: its size; storages that are resized become several blocks.
        born: index of the operator that first wrote it.
        died: index at which it was freed, None if it never was.
        phase: the phase in which it was made.
        line: the user's line that made it.
        category: what it holds, once that is known.
        shape: of the tensor that it was made for.
    """

    size_bytes: int
    born: int
    phase: Phase
    line: str
    died: int | None = None
    category: Category | None = None
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class HostRead:
    """A value that the script reads from the device; it gets a placeholder.

    Attributes:
        line: the user's line.
        what: what it reads.
        times: how often, in the whole run.
        last: operators recorded before the last time.
    """

    line: str
    what: str
    times: int = 1
    last: int = 0


@dataclass(slots=True)
class Recording:
    """Everything recorded of a run.

    Attributes:
        ops: operators in the order of the program.
        blocks: storages by identifier.
        step_ends: number of operators after each step.
        reads: values read by the host, by line.
        notes: what the plan cannot see.
        optimizers: how many the script made.
        world_size: ranks.
        rank: the rank that was recorded.
        ranks: the ranks that it stands for.
        script: the user's script.
        called: the module whose call is the step, in a script without an optimizer.
        calls: the operators with their arguments (`plan.calls.Call`), if they are kept.
        downloads: how many operators were recorded before the host read a value, and its
            `plan.calls.Place`, if these are kept.
    """

    ops: list[Op] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    step_ends: list[int] = field(default_factory=list)
    reads: dict[str, HostRead] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    optimizers: int = 0
    world_size: int = 1
    rank: int = 0
    ranks: tuple[int, ...] = ()
    script: str = ""
    called: str = ""
    calls: list[Any] = field(default_factory=list)
    downloads: list[tuple[int, Any]] = field(default_factory=list)

    def step(self) -> tuple[int, int]:
        """The operators of the last whole step, which holds the optimizer's state."""
        if not self.step_ends:
            return 0, len(self.ops)
        ends = [0, *self.step_ends]
        return ends[-2], ends[-1]
