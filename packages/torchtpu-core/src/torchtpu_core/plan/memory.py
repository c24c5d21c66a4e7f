# SPDX-License-Identifier: Apache-2.0
"""HBM over a step, by what it holds and by the user's lines.

What takes HBM, and for how long, is that of a program of the whole step (`plan.lifetimes`):
what Python refers to but no operator of the step needs, as the logits of the step before, counts
nothing, and neither does what lies in the place of a result that is written later
(`plan.shared_places`). Other values are placed in the program's order (`plan.heap`); the holes
that this leaves, and the program's tables of addresses, count as temporaries. Not modelled: most
padding, and the compiler's own temporaries.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.heap import heap_bytes
from torchtpu_core.plan.lifetimes import Lifetimes, lifetimes_of
from torchtpu_core.plan.records import Block, Category, Op, Phase
from torchtpu_core.plan.shared_places import in_own_places
from torchtpu_core.plan.vmem import NO_VMEM, Vmem
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.units import format_bytes


@dataclass(slots=True)
class Memory:
    """HBM of one device during a step.

    Attributes:
        curves: bytes before each operator of the step, by category.
        peak_index: the operator at which the sum is largest.
        peak_bytes: that sum.
        at_peak: bytes at the peak, by category.
        lines: bytes at the peak by category and line, largest first.
        limit_bytes: what a device may allocate.
        holes_bytes: of the temporaries, what is taken beyond what lives at the peak.
        resident: storages of values that stay in VMEM.
        scores: attention of the step whose scores do, by index, and the bytes that those of its
            values move which do not.
    """

    curves: dict[Category, list[int]] = field(default_factory=dict)
    peak_index: int = 0
    peak_bytes: int = 0
    at_peak: dict[Category, int] = field(default_factory=dict)
    lines: list[tuple[Category, str, int]] = field(default_factory=list)
    limit_bytes: int = 0
    holes_bytes: int = 0
    resident: set[int] = field(default_factory=set)
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def to_fit(self) -> str:
        """The nearest change that would fit; empty if it fits."""
        if self.fits:
            return ""
        varies = sum(self.at_peak.get(category, 0) for category in Category.varying())
        state = self.peak_bytes - varies
        if state >= self.limit_bytes:
            return (
                f"parameters, gradients and optimizer state alone take {format_bytes(state)}: "
                f"shard them over {math.ceil(state / self.limit_bytes)} times as many devices"
            )
        part = (self.limit_bytes - state) / varies
        return (
            f"it would fit with {part:.0%} of the batch or of the sequence per device, or with "
            "activations computed again or split by tensor parallelism"
        )


def memory_of(
    ops: Sequence[Op],
    blocks: dict[int, Block],
    step: tuple[int, int],
    limit_bytes: int,
    vmem: Vmem = NO_VMEM,
    table_bytes: int = 0,
    *,
    keeps_gelus: bool = False,
) -> Memory:
    """HBM over the operators ``step[0]`` to ``step[1]`` of a recording.

    Args:
        ops: the operators of the recording.
        blocks: its storages.
        step: where the step starts and ends.
        limit_bytes: what a device may allocate.
        vmem: room for values in VMEM.
        table_bytes: of one table of addresses.
        keeps_gelus: whether XLA writes GELUs of all products of bfloat16 for the chip.
    """
    start, end = step
    inside = ops[start:end]
    backward = _first(inside, (Phase.BACKWARD, Phase.RECOMPUTE))
    found = lifetimes_of(inside, blocks, start, vmem, keeps_gelus=keeps_gelus)
    changes: dict[Category, list[int]] = {
        category: [0] * (end - start + 2) for category in Category
    }
    own = in_own_places(found.lives, found.places)
    living = []
    for storage, size in found.fixed.items():
        if not size:
            continue
        category = given_category(blocks[storage], start)
        living.append((category, 0, end - start + 1, size, storage))
    for life in own:
        category = _category(blocks[life.storage], life.end, backward)
        living.append((category, life.first, life.end, life.size_bytes, life.storage))
    for category, first, last, size, _ in living:
        changes[category][first] += size
        changes[category][last] -= size
    curves = {category: _running(row)[:-1] for category, row in changes.items()}
    totals = [sum(values) for values in zip(*curves.values(), strict=True)]
    peak = max(range(len(totals)), key=totals.__getitem__)
    tables = round(table_bytes * _tables(inside, blocks, found))
    taken = sum(found.fixed.values()) + heap_bytes(own) + tables
    holes = taken - totals[peak]
    curves[Category.TEMPORARIES] = [size + holes for size in curves[Category.TEMPORARIES]]
    memory = Memory(
        curves=curves,
        peak_index=peak,
        peak_bytes=taken,
        at_peak={category: curve[peak] for category, curve in curves.items()},
        limit_bytes=limit_bytes,
        holes_bytes=holes,
        resident=found.resident,
        scores=found.scores,
    )
    by_line: dict[tuple[Category, str], int] = defaultdict(int)
    for category, first, last, size, storage in living:
        if first <= peak < last:
            by_line[category, blocks[storage].line] += size
    memory.lines = sorted(
        ((category, line, size) for (category, line), size in by_line.items()),
        key=lambda row: -row[2],
    )
    return memory


def _tables(ops: Sequence[Op], blocks: dict[int, Block], found: Lifetimes) -> float:
    """Tables of addresses, which copies to VMEM and back need; several where they are in parts."""
    changed = {storage for op in ops for storage in op.writes if storage in found.fixed}
    parted = sum(_is_parted(blocks[storage]) for storage in changed)
    values = sum(_is_parted(blocks[storage]) for storage in {life.storage for life in found.lives})
    return (
        (len(changed) - parted) * cal.TABLES_PER_STATE.value
        + parted * cal.TABLES_PER_PARTED_STATE.value
        + values * cal.TABLES_PER_PARTED_VALUE.value
    )


def _is_parted(block: Block) -> bool:
    return cal.PARTED_BYTES.value <= block.size_bytes <= cal.MOST_PARTED_BYTES.value


def given_category(block: Block, start: int) -> Category:
    """What an operand or result of the step holds, which starts with the operator `start`."""
    return block.category or (Category.HELD if block.born < start else Category.ACTIVATIONS)


def _category(block: Block, end: int, backward: int) -> Category:
    """What a value of the step holds that is needed until before the operator `end`."""
    if block.category is not None:
        return block.category
    kept = block.phase is Phase.FORWARD and end > backward
    return Category.ACTIVATIONS if kept else Category.TEMPORARIES


def _first(ops: Sequence[Op], phases: tuple[Phase, ...]) -> int:
    found = (index for index, op in enumerate(ops) if op.phase in phases)
    return next(found, len(ops))


def _running(changes: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for change in changes:
        total += change
        sums.append(total)
    return sums
