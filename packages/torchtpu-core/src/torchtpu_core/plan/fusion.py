# SPDX-License-Identifier: Apache-2.0
"""Which tensors reach HBM once the compiler has fused elementwise work.

A result of elementwise work, or of a product, that only elementwise operators read soon
afterwards, and that nobody keeps, stays within a fusion: neither written nor read, nor
given memory. What XLA computes again where it is read (`plan.recomputed`), as the cast of a
weight, is not written either; its readers read what it is made of. Elementwise operators between
the same products are one fusion of several results: it reads each of its operands once, and
none of its own results, as in an optimizer's update of a parameter. What products, attention,
collectives and moves read is otherwise written. What stays in VMEM throughout (`plan.vmem`) is
written and read there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtpu_core.plan.attention_kernels import STATISTICS_MOVED
from torchtpu_core.plan.attention_memory import has_statistics, statistic_bytes
from torchtpu_core.plan.broadcasts import broadcasts_of, written_for
from torchtpu_core.plan.fused_updates import fusions
from torchtpu_core.plan.fusible import COSTLY, is_elementwise
from torchtpu_core.plan.recomputed import WINDOW, sources_of
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.tiles import padded_sizes
from torchtpu_core.plan.uses import uses_of
from torchtpu_core.plan.written import written_results


@dataclass(slots=True)
class Fusion:
    """What each operator moves through HBM, and which blocks exist only inside fusions.

    Attributes:
        moved_bytes: reads and writes of each operator, by its index in the step.
        vmem_bytes: likewise what it reads and writes of values that stay in VMEM.
        inside: blocks that are never materialised.
        staged: operators whose results only collectives use.
        again: what is computed again for its readers, with what it is made of.
        elided: results, as (operator, storage), that never leave their fusion.
    """

    moved_bytes: list[float] = field(default_factory=list)
    vmem_bytes: list[float] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    again: dict[int, frozenset[int]] = field(default_factory=dict)
    elided: set[tuple[int, int]] = field(default_factory=set)

    def staying(
        self,
        ops: Sequence[Op],
        blocks: dict[int, Block],
        resident: Container[int],
        scores: Mapping[int, float] | None = None,
    ) -> Fusion:
        """The same fusions, where some storages stay in VMEM.

        Args:
            ops: the operators.
            blocks: storages by identifier.
            resident: which stay.
            scores: attention whose scores stay, by index, and the bytes that the others move.
        """
        traffic = _Traffic(ops, blocks, self.again, self.elided, resident)
        moved, within = traffic.counted(scores or {})
        return replace(self, moved_bytes=moved, vmem_bytes=within)


def fuse(
    ops: Sequence[Op], blocks: dict[int, Block], offset: int, *, keeps_gelus: bool = False
) -> Fusion:
    """Fuses the operators of a step.

    Args:
        ops: the operators.
        blocks: storages by identifier; `Block.died` counts from the recording's start.
        offset: index of the first operator in the recording.
        keeps_gelus: whether XLA writes GELUs of all products of bfloat16 for the chip.
    """
    readers = _readers(ops)
    uses = uses_of(ops, blocks, offset)
    ends = written_for(broadcasts_of(ops, blocks, uses))
    again = sources_of(
        *(ops, uses, lambda storage: blocks[storage].size_bytes if storage in blocks else 0),
        written_results(ops, blocks, ends, keeps_gelus=keeps_gelus),
    )
    elided = _elided(ops, blocks, offset, readers, again)
    made: dict[int, list[bool]] = defaultdict(list)
    for index, op in enumerate(ops):
        for storage in op.writes:
            made[storage].append((index, storage) in elided or storage in again)
    return Fusion(
        inside={storage for storage, all_ in made.items() if all(all_)},
        staged=_staged(ops, readers),
        again=again,
        elided=elided,
    ).staying(ops, blocks, set())


def _elided(
    ops: Sequence[Op],
    blocks: dict[int, Block],
    offset: int,
    readers: dict[tuple[int, int], list[int]],
    again: Container[int],
) -> set[tuple[int, int]]:
    """Results, as (operator, storage), that never leave their fusion.

    What is read by an operator that is computed again is read by that one's readers.
    """
    found: set[tuple[int, int]] = set()
    written_again: set[int] = set()
    for index in range(len(ops) - 1, -1, -1):
        for storage in ops[index].writes:
            last = storage not in written_again
            users = readers.get((index, storage), [])
            if any(written in again for user in users for written in ops[user].writes):
                continue
            if _stays_inside(ops, index, storage, readers, blocks[storage], offset, last):
                found.add((index, storage))
        written_again.update(ops[index].writes)
    return found


class _Traffic:
    """Counts what operators read and write of HBM, in the order of the program."""

    def __init__(
        self,
        ops: Sequence[Op],
        blocks: dict[int, Block],
        again: dict[int, frozenset[int]],
        elided: set[tuple[int, int]],
        resident: Container[int],
    ) -> None:
        self._ops, self._blocks, self._again, self._elided = ops, blocks, again, elided
        self._resident = resident
        self._ever_read = {storage for op in ops for storage in op.reads}
        self._padded = padded_sizes(ops, blocks)
        self._fusion_of = fusions(ops, blocks)
        self._made_of = _made_of(ops, blocks, again)
        self._writer: dict[int, int] = {}
        self._loaded: dict[tuple[int, int | None, int], float] = defaultdict(float)

    def counted(self, scores: Mapping[int, float]) -> tuple[list[float], list[float]]:
        """Bytes of HBM and of VMEM by operator; of what is computed again they are its readers'."""
        moved, within = [], []
        for index, op in enumerate(self._ops):
            hbm = vmem = 0.0
            if not op.writes or not self._again.keys() >= set(op.writes):
                for storage, size in (*self._read(index, op), *self._written(index, op)):
                    size *= self._padding(storage)
                    if storage in self._resident:
                        vmem += size
                    else:
                        hbm += size
                own = scores.get(index, self._kernel_bytes(op))
                # Kernels' bytes are those of their operands and results as well.
                hbm = hbm + own if not op.flash else max(hbm, own - vmem)
            moved.append(hbm)
            within.append(vmem)
            self._writer.update(dict.fromkeys(op.writes, index))
        return moved, within

    def _kernel_bytes(self, op: Op) -> float:
        """What kernels of attention move, without the statistics that nobody reads."""
        if not op.flash or has_statistics(op, self._ever_read):
            return op.kernel_bytes
        return op.kernel_bytes - STATISTICS_MOVED * statistic_bytes(op)

    def _padding(self, storage: int) -> float:
        """How many times its elements' bytes a storage takes."""
        padded = self._padded.get(storage)
        return padded / self._blocks[storage].size_bytes if padded else 1.0

    def _read(self, index: int, op: Op) -> Iterator[tuple[int, float]]:
        """Storages, and the bytes of each that the operator reads."""
        sizes: dict[int, int] = defaultdict(int)
        for storage, size in zip(op.reads, op.read_bytes, strict=True):
            sizes[storage] += size
        for storage, size in sizes.items():
            if storage not in self._again:
                yield storage, self._load(index, storage, size)
                continue
            part = min(1.0, size / max(self._blocks[storage].size_bytes, 1))
            for source, whole in self._made_of[storage].items():
                yield source, self._load(index, source, part * whole)

    def _load(self, index: int, storage: int, size: float) -> float:
        """Bytes of an operand that its fusion has not read yet."""
        writer, fusion = self._writer.get(storage), self._fusion_of[index]
        if writer is not None and (writer, storage) in self._elided:
            return 0.0
        if writer is not None and self._fusion_of[writer] == fusion:
            return 0.0
        of_product = writer is not None and self._ops[writer].work is Work.MATMUL
        if of_product and self._ops[index].name in COSTLY:
            return 0.0  # the product has both results
        key = fusion, writer, storage
        block = self._blocks.get(storage)
        rest = size if block is None else max(0.0, block.size_bytes - self._loaded[key])
        self._loaded[key] += min(size, rest)
        return min(size, rest)

    def _written(self, index: int, op: Op) -> Iterator[tuple[int, float]]:
        """Storages, and the bytes of each that the operator writes."""
        for storage, size in zip(op.writes, op.write_bytes, strict=True):
            if (index, storage) not in self._elided and storage not in self._again:
                yield storage, size


def _made_of(
    ops: Sequence[Op], blocks: dict[int, Block], again: dict[int, frozenset[int]]
) -> dict[int, dict[int, float]]:
    """Bytes of its sources that are read to compute a result again, which may be a part of them."""
    found: dict[int, dict[int, float]] = {storage: defaultdict(float) for storage in again}
    for op in ops:
        for storage in found.keys() & set(op.writes):
            for one, size in zip(op.reads, op.read_bytes, strict=True):
                part = min(1.0, size / max(blocks[one].size_bytes, 1)) if one in blocks else 1.0
                inner = found[one].items() if one in found else ((one, float(size)),)
                for source, whole in inner if one != storage else ():
                    if source in again[storage]:
                        found[storage][source] += part * whole if one in found else whole
            # A cast that an earlier one has made reads that one's result.
            for source in again[storage] - found[storage].keys():
                found[storage][source] = float(blocks[source].size_bytes)
    return {
        storage: {s: min(size, blocks[s].size_bytes) for s, size in sources.items()}
        for storage, sources in found.items()
    }


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
    if not is_elementwise(ops[index]) and ops[index].work is not Work.MATMUL:
        return False
    users = readers.get((index, storage), [])
    if any(not is_elementwise(ops[user]) or user - index > WINDOW for user in users):
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
