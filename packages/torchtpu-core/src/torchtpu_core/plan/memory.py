# SPDX-License-Identifier: Apache-2.0
"""HBM over a step, by what it holds and by the user's lines.

A block counts from the operator that makes it to the one after which nothing refers to
it; blocks that live within fusions take nothing, images are padded to tiles. Not modelled:
fragmentation, other padding, and the compiler's own temporaries.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.records import Block, Category, Op, Phase, Work
from torchtpu_core.plan.tiles import image_sizes
from torchtpu_core.simulator.rates import LANES
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
    """

    curves: dict[Category, list[int]] = field(default_factory=dict)
    peak_index: int = 0
    peak_bytes: int = 0
    at_peak: dict[Category, int] = field(default_factory=dict)
    lines: list[tuple[Category, str, int]] = field(default_factory=list)
    limit_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def to_fit(self) -> str:
        """The nearest change that would fit; empty if it fits."""
        if self.fits:
            return ""
        growing = (Category.ACTIVATIONS, Category.TEMPORARIES)
        varies = sum(self.at_peak.get(category, 0) for category in growing)
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
    inside: set[int],
    limit_bytes: int,
) -> Memory:
    """HBM over the operators ``step[0]`` to ``step[1]`` of a recording."""
    start, end = step
    backward = _first(ops, start, end, (Phase.BACKWARD, Phase.RECOMPUTE))
    changes: dict[Category, list[int]] = {
        category: [0] * (end - start + 2) for category in Category
    }
    living = {}
    read = {storage for op in ops[start:end] for storage in op.reads}
    padded = image_sizes(ops[start:end], blocks)
    for number, block in blocks.items():
        died = end + 1 if block.died is None else block.died
        if number in inside or died <= start or block.born > end or not block.size_bytes:
            continue
        if number not in read and block.category is None and start <= block.born < died <= end:
            continue  # nobody needs it: the compiler leaves out what makes it
        category = _category(block, start, backward)
        first, last = max(block.born, start) - start, min(died, end + 1) - start
        size = padded.get(number, block.size_bytes)
        changes[category][first] += size
        changes[category][last] -= size
        living[number] = (category, first, last)
    for index, op in enumerate(ops[start:end]):
        size = _statistics_bytes(op)
        changes[Category.TEMPORARIES][index] += size
        changes[Category.TEMPORARIES][index + 1] -= size
    curves = {category: _running(row)[:-1] for category, row in changes.items()}
    totals = [sum(values) for values in zip(*curves.values(), strict=True)]
    peak = max(range(len(totals)), key=totals.__getitem__)
    found = Memory(
        curves=curves,
        peak_index=peak,
        peak_bytes=totals[peak],
        at_peak={category: curve[peak] for category, curve in curves.items()},
        limit_bytes=limit_bytes,
    )
    by_line: dict[tuple[Category, str], int] = defaultdict(int)
    for number, (category, first, last) in living.items():
        if first <= peak < last:
            size = padded.get(number, blocks[number].size_bytes)
            by_line[category, blocks[number].line] += size
    found.lines = sorted(
        ((category, line, size) for (category, line), size in by_line.items()),
        key=lambda row: -row[2],
    )
    return found


def _statistics_bytes(op: Op) -> int:
    """Bytes of the softmax's statistics, while the flash kernel runs.

    A number for each query and head, in all lanes of a float32 vector: maximum and sum in the
    forward kernel, these and the product with the gradient in the backward one.
    """
    if op.work is not Work.ATTENTION or not op.read_bytes:
        return 0
    width = op.head_dims[1] if op.gradient else op.head_dims[0]
    rows = op.read_bytes[0] // max(1, width * (4 if op.dtype == "f32" else 2))
    return rows * LANES * 4 * (3 if op.gradient else 2)


def _category(block: Block, start: int, backward: int) -> Category:
    if block.category is not None:
        return block.category
    # What an earlier step left, such as its loss or logits, is still an activation.
    outlives = block.died is None or block.died > backward or block.born < start
    if block.phase is Phase.FORWARD and outlives:
        return Category.ACTIVATIONS
    return Category.TEMPORARIES


def _first(ops: Sequence[Op], start: int, end: int, phases: tuple[Phase, ...]) -> int:
    for index in range(start, end):
        if ops[index].phase in phases:
            return index
    return end


def _running(changes: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for change in changes:
        total += change
        sums.append(total)
    return sums
