# SPDX-License-Identifier: Apache-2.0
"""Who reads and writes each storage of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.records import Block, Op


@dataclass(slots=True)
class Uses:
    """Readers and writers by storage, as indices of operators of the step.

    Attributes:
        readers: operators that read a storage, in order.
        writers: operators that write it, in order.
        fixed: storages that have a value before the step or after it: they take memory all the
            time, as operands and results of a program do.
        repeats: casts that an earlier cast of the same value has made, with that one's result.
    """

    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    writers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    fixed: set[int] = field(default_factory=set)
    repeats: dict[int, int] = field(default_factory=dict)

    @property
    def passing(self) -> list[int]:
        """Storages that only the step uses, in the order in which they are written."""
        found = [storage for storage in self.writers if storage not in self.fixed]
        return sorted(found, key=lambda storage: self.writers[storage][0])

    def readers_alone(self, ops: Sequence[Op], storage: int) -> Iterator[Op]:
        """Operators each of which alone reads what the one before it makes, in their order.

        One that changes its operand in place also reads what it makes, and is there once.
        """
        past = -1
        while len(readers := self.readers.get(storage, [])) == 1 and readers[0] > past:
            past = readers[0]
            yield ops[past]
            if not ops[past].writes:
                return
            storage = ops[past].writes[0]


def uses_of(ops: Sequence[Op], blocks: dict[int, Block], start: int) -> Uses:
    """The uses of a step's storages.

    Args:
        ops: its operators.
        blocks: storages by identifier.
        start: operators recorded before the step.
    """
    end = start + len(ops)

    def outlives(storage: int) -> bool:
        block = blocks[storage]
        return block.born < start or block.died is None or block.died > end

    found = Uses()
    for index, op in enumerate(ops):
        for storage in blocks.keys() & set(op.reads):
            found.readers[storage].append(index)
        for storage in blocks.keys() & set(op.writes):
            found.writers[storage].append(index)
    for storage in {*found.readers, *found.writers}:
        if outlives(storage) or storage not in found.writers:
            found.fixed.add(storage)
    for storage, block in blocks.items():  # what the step does not touch is there all the same
        if block.born < start and (block.died is None or block.died > end):
            found.fixed.add(storage)
    found.repeats = _repeats(ops, blocks, found)
    return found


def _repeats(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> dict[int, int]:
    """Results of casts that an earlier cast of the same value has made, with that one's result.

    So autocast rounds an activation for each linear layer that reads it, and XLA once.
    """
    first: dict[tuple[int, int, tuple[int, ...]], int] = {}
    found: dict[int, int] = {}
    for op in ops:
        if op.name != "_to_copy" or len(op.reads) != 1 or len(op.writes) != 1:
            continue
        source, made = op.reads[0], op.writes[0]
        if source not in blocks or op.read_bytes[0] != blocks[source].size_bytes:
            continue
        changed = any(len(uses.writers.get(one, ())) > 1 for one in (source, made))
        if changed or made in uses.fixed or (source in uses.fixed and source in uses.writers):
            continue
        key = source, op.write_bytes[0], blocks[made].shape
        if key in first:
            found[made] = first[key]
        else:
            first[key] = made
    return found
