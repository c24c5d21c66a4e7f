# SPDX-License-Identifier: Apache-2.0
"""Copies of whole storages that XLA drops: both names are one value from then on.

Autograd copies to be able to write: for an in-place operator on a view it copies the gradient of
the whole, copies that again, and copies the result back. In a program, where values are never
written again, such copies are nothing. They stay where the copy outlives the step, or where one
storage is written while the other's value is still read. A value that is copied because it is
changed in place afterwards, as by a ReLU6 or a SiLU whose gradient wants it, is the copy instead.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchtpu_core.plan.records import Op, Recording, Work

_COPIES = ("clone", "copy_", "_to_copy")


def is_identity(name: str, args: Sequence[Any], out: Any) -> bool:
    """Whether an operator gives a whole storage the bytes of another whole storage.

    Args:
        name: of the operator.
        args: its positional arguments.
        out: what it returned.
    """
    if name not in _COPIES:
        return False
    target, source = args[:2] if name == "copy_" else (out, args[0])
    if not isinstance(target, FakeTensor) or not isinstance(source, FakeTensor):
        return False
    if {target.layout, source.layout} != {torch.strided}:  # sparse tensors have no storage
        return False
    same = target.dtype == source.dtype and target.device == source.device
    same = same and target.shape == source.shape and target.stride() == source.stride()
    same = same and (target.is_neg(), target.is_conj()) == (source.is_neg(), source.is_conj())
    size = math.prod(target.shape) * target.element_size()
    return same and all(t.untyped_storage().nbytes() == size for t in (target, source))


def drop_identity_copies(recording: Recording) -> None:
    """Takes such copies out of the last step of a recording; their results are their operands."""
    start, end = recording.step()
    _give_values_to_copies(recording, start, end)
    found = _Copies(recording, start, end)
    dropped = [i for i in range(start, end) if recording.ops[i].identity and found.drops(i)]
    if not dropped:
        return
    for op in recording.ops[start:end]:
        op.reads = tuple(map(found.value_of, op.reads))
        op.writes = tuple(map(found.value_of, op.writes))
    gone = set(dropped)
    recording.ops[:] = [op for i, op in enumerate(recording.ops) if i not in gone]

    def moved(index: int) -> int:
        return index - bisect.bisect_left(dropped, index)

    recording.step_ends[:] = map(moved, recording.step_ends)
    for block in recording.blocks.values():
        block.born = moved(block.born)
        block.died = None if block.died is None else moved(block.died)
    for call in recording.calls:
        call.index = moved(call.index)
    for read in recording.reads.values():
        read.last = moved(read.last)


def _give_values_to_copies(recording: Recording, start: int, end: int) -> None:
    """Names values that are copied before they are changed in place after their copies.

    The storage then begins with the change, which reads the copy.
    """
    ops, blocks = recording.ops, recording.blocks
    touched: dict[int, list[int]] = defaultdict(list)
    for index in range(start, end):
        for storage in {*ops[index].reads, *ops[index].writes}:
            touched[storage].append(index)
    for index in range(start, end):
        if not ops[index].identity:
            continue
        source, target = _source(ops[index]), ops[index].writes[0]
        if not {source, target} <= blocks.keys() or blocks[source].born < start:
            continue
        if source in ops[touched[source][0]].reads:  # of before the step
            continue
        if touched[target][0] != index or any(target in ops[i].writes for i in touched[target][1:]):
            continue
        after = (i for i in touched[source] if i > index and source in ops[i].writes)
        change = next(after, None)
        if change is None or not _changes_whole(ops[change], source, blocks[source].size_bytes):
            continue
        names = {source: target}
        before = [i for i in touched[source] if i < change]
        for op in (ops[i] for i in before):
            op.reads = tuple(names.get(one, one) for one in op.reads)
            op.writes = tuple(names.get(one, one) for one in op.writes)
        ops[change].reads = tuple(names.get(one, one) for one in ops[change].reads)
        touched[target] = sorted({*touched[target], *before, change})
        touched[source] = [i for i in touched[source] if i >= change]
        blocks[target].born, blocks[source].born = blocks[source].born, change


def _changes_whole(op: Op, storage: int, size_bytes: int) -> bool:
    """Whether an elementwise operator makes every element of a storage anew."""
    written = op.write_bytes[op.writes.index(storage)]
    return op.work is Work.ELEMENTWISE and op.writes == (storage,) and written == size_bytes


class _Copies:
    """Which storages of a step are one value."""

    def __init__(self, recording: Recording, start: int, end: int) -> None:
        self._ops, self._blocks = recording.ops, recording.blocks
        self._start, self._end = start, end
        self._same: dict[int, int] = {}
        self._reads: dict[int, list[int]] = defaultdict(list)
        self._writes: dict[int, list[int]] = defaultdict(list)
        for index in range(start, end):
            op = recording.ops[index]
            for storage in [_source(op)] if op.identity else op.reads:
                self._reads[storage].append(index)
            for storage in op.writes:
                self._writes[storage].append(index)

    def value_of(self, storage: int) -> int:
        """The storage whose value it is."""
        while storage in self._same:
            storage = self._same[storage]
        return storage

    def drops(self, index: int) -> bool:
        """Whether a copy is nothing: it is taken for that from here on."""
        op = self._ops[index]
        source, target = self.value_of(_source(op)), self.value_of(op.writes[0])
        if source == target:
            return True
        if not {source, target} <= self._blocks.keys() or not self._is_new(target, index):
            return False
        pair = {source, target}
        if self._outlives(target) or any(
            self._is_read_after(other, write)
            for one, other in ((source, target), (target, source))
            for write in self._writes[one]
            if write > index and not self._is_among(write, pair)
        ):
            return False
        self._same[target] = source
        for uses in (self._reads, self._writes):
            uses[source] = sorted(uses[source] + uses.pop(target, []))
        kept, gone = self._blocks[source], self._blocks[target]
        if kept.died is not None and gone.died is not None:
            kept.died = max(kept.died, gone.died)
        return True

    def _is_new(self, storage: int, index: int) -> bool:
        """Whether an operator is the first that touches a storage."""
        touched = [uses[storage][0] for uses in (self._reads, self._writes) if uses[storage]]
        return self._blocks[storage].born >= self._start and min(touched) == index

    def _outlives(self, storage: int) -> bool:
        block = self._blocks[storage]
        return block.born < self._start or block.died is None or block.died > self._end

    def _is_read_after(self, storage: int, index: int) -> bool:
        return self._outlives(storage) or any(read > index for read in self._reads[storage])

    def _is_among(self, index: int, pair: set[int]) -> bool:
        """Whether an operator copies one of two storages to the other."""
        op = self._ops[index]
        return op.identity and {self.value_of(_source(op)), self.value_of(op.writes[0])} <= pair


def _source(op: Op) -> int:
    """What a copy reads; one in place also names what it writes."""
    return op.reads[-1]
