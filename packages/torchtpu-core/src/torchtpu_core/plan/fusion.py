# SPDX-License-Identifier: Apache-2.0
"""Which tensors reach HBM once the compiler has fused elementwise work.

A result of elementwise work, or of a product, that only elementwise operators read soon
afterwards, and that nobody keeps, stays within a fusion: neither written nor read, nor
given memory. What products, attention, collectives and moves read is always written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.records import Block, Op, Work

#: Operators further apart than this are not fused.
WINDOW = 24


@dataclass(slots=True)
class Fusion:
    """What each operator moves through HBM, and which blocks exist only inside fusions.

    Attributes:
        moved_bytes: reads and writes of each operator, by its index in the step.
        inside: blocks that are never materialised.
        staged: operators whose results only collectives use.
    """

    moved_bytes: list[float] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)


def fuse(ops: Sequence[Op], blocks: dict[int, Block], offset: int) -> Fusion:
    """Fuses the operators of a step.

    Args:
        ops: the operators.
        blocks: storages by identifier; `Block.died` counts from the recording's start.
        offset: index of the first operator in the recording.
    """
    readers = _readers(ops)
    elided: set[tuple[int, int]] = set()
    written_again: dict[int, int] = {}
    for index in range(len(ops) - 1, -1, -1):
        for storage in ops[index].writes:
            last = storage not in written_again
            if _stays_inside(ops, index, storage, readers, blocks[storage], offset, last):
                elided.add((index, storage))
            written_again[storage] = index
    fusion = Fusion()
    writer: dict[int, int] = {}
    for index, op in enumerate(ops):
        moved = 0.0
        for storage, size in zip(op.reads, op.read_bytes, strict=True):
            source = writer.get(storage)
            if source is None or (source, storage) not in elided:
                moved += size
        for storage, size in zip(op.writes, op.write_bytes, strict=True):
            writer[storage] = index
            if (index, storage) not in elided:
                moved += size
        fusion.moved_bytes.append(moved)
    made = defaultdict(list)
    for index, op in enumerate(ops):
        for storage in op.writes:
            made[storage].append((index, storage) in elided)
    fusion.inside = {storage for storage, all_ in made.items() if all(all_)}
    fusion.staged = _staged(ops, readers)
    return fusion


def _readers(ops: Sequence[Op]) -> dict[tuple[int, int], list[int]]:
    """Operators that read each result, by (operator, storage) that made it."""
    writer: dict[int, int] = {}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        for storage in op.reads:
            if storage in writer:
                readers[writer[storage], storage].append(index)
        for storage in op.writes:
            writer[storage] = index
    return readers


def _stays_inside(
    ops: Sequence[Op],
    index: int,
    storage: int,
    readers: dict[tuple[int, int], list[int]],
    block: Block,
    offset: int,
    last_version: bool,
) -> bool:
    """Whether a result never leaves its fusion."""
    if ops[index].work not in (Work.ELEMENTWISE, Work.MATMUL):
        return False
    users = readers.get((index, storage), [])
    if any(ops[user].work is not Work.ELEMENTWISE or user - index > WINDOW for user in users):
        return False
    if not last_version:
        return bool(users)
    if block.died is None or not users:
        return False
    return block.died - offset <= max(users) + WINDOW


def _staged(ops: Sequence[Op], readers: dict[tuple[int, int], list[int]]) -> set[int]:
    """Moves and elementwise work that only feed collectives, as FSDP's copy-in does."""
    staged: set[int] = set()
    for index in range(len(ops) - 1, -1, -1):
        if ops[index].work not in (Work.MOVE, Work.ELEMENTWISE):
            continue
        users = [user for s in ops[index].writes for user in readers.get((index, s), [])]
        if users and all(ops[u].work is Work.COLLECTIVE or u in staged for u in users):
            staged.add(index)
    return staged
