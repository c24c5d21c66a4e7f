# SPDX-License-Identifier: Apache-2.0
"""Which values of a step take HBM, and from which operator to which.

As in a program that XLA's TPU compiler makes of the step: operands and results have places of
their own throughout; other values live from the operator that makes them to the last that needs
them, whatever Python still refers to. What is computed again for its readers
(`plan.recomputed`), or stays in VMEM (`plan.vmem`), takes none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.recomputed import is_elementwise, is_grouped_convolution, sources_of
from torchtpu_core.plan.records import Block, Category, Op, Work
from torchtpu_core.plan.tiles import image_sizes
from torchtpu_core.plan.uses import Uses, uses_of
from torchtpu_core.plan.vmem import Life, in_hbm
from torchtpu_core.simulator.rates import LANES
from torchtpu_core.units import ceil_div

_STATE = (Category.PARAMETERS, Category.OPTIMIZER)
_ELEMENT_BYTES = {"f32": 4, "f64": 8}


@dataclass(slots=True)
class Lifetimes:
    """What takes HBM in a step.

    Attributes:
        fixed: bytes of storages that take it throughout.
        lives: values that take it for a part of the step.
    """

    fixed: dict[int, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)


def lifetimes_of(
    ops: Sequence[Op], blocks: dict[int, Block], start: int, vmem_bytes: int
) -> Lifetimes:
    """What takes HBM in a step of operators.

    Args:
        ops: the operators of the step.
        blocks: storages by identifier.
        start: operators recorded before the step.
        vmem_bytes: room in VMEM for values.
    """
    uses = uses_of(ops, blocks, start)
    size_of = _Sizes(ops, blocks, uses)
    kept = _attention(ops, uses)
    sources = sources_of(ops, uses, size_of)
    values = _lives(ops, uses, sources, size_of)
    lives = [*(life for life in values if blocks[life.storage].category not in _STATE), *kept]
    fixed = {storage: size_of(storage) for storage in uses.fixed}
    passing = []
    for storage, size in fixed.items():
        read = set(uses.readers.get(storage, ()))
        for index in sorted(read.union(uses.writers.get(storage, ()))):
            points = (max(0, index - 1), index) if index in read else (index,)
            passing.append(Life(storage, size, points, index + 1))
    held = list(_held(blocks, uses, start, len(ops)))
    return Lifetimes(fixed, [*in_hbm(lives, passing, vmem_bytes), *held])


def _held(blocks: dict[int, Block], uses: Uses, start: int, count: int) -> Iterator[Life]:
    """State that the step makes or frees: it is there as long as the script has it."""
    for storage, block in blocks.items():
        if block.category not in _STATE or storage in uses.fixed:
            continue
        first = max(0, block.born - start)
        end = count if block.died is None else min(count, block.died - start)
        if first < end:
            yield Life(storage, block.size_bytes, (first,), end)


class _Sizes:
    """Bytes of storages, as the compiler keeps them."""

    def __init__(self, ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> None:
        self._padded = image_sizes(ops, blocks)
        self._blocks = blocks
        self._wide = {
            s
            for s in uses.passing
            if _keeps_sums(ops, blocks, uses, s) or _feeds_groups(ops, uses, s)
        }

    def __call__(self, storage: int) -> int:
        size = self._padded.get(storage, self._blocks[storage].size_bytes)
        return 2 * size if storage in self._wide else size


def _feeds_groups(ops: Sequence[Op], uses: Uses, storage: int) -> bool:
    """Whether a bfloat16 value is an operand of a grouped convolution, kept as float32.

    XLA convolves groups, and depthwise, in float32, and has the forward and the backward pass share
    what it converted.
    """
    readers = (ops[index] for index in uses.readers[storage])
    return any(op.dtype == "bf16" and is_grouped_convolution(op) for op in readers)


def _keeps_sums(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int) -> bool:
    """Whether a product's result is kept as the float32 sums that it is made of.

    Where elementwise work reads it in another shape, XLA moves the rounding to bfloat16 past the
    change of shape, into the readers' fusions, unless one of them takes it rounded.
    """
    op, block = ops[uses.writers[storage][0]], blocks[storage]
    if op.work is not Work.MATMUL or op.dtype != "bf16" or op.name.startswith("convolution"):
        return False
    readers = [ops[index] for index in uses.readers[storage]]
    if not readers or not all(map(_takes_float32, readers)):
        return False
    rank = len(block.shape)
    return any(len(blocks[w].shape) != rank for reader in readers for w in reader.writes[:1])


def _takes_float32(op: Op) -> bool:
    """Whether an operator computes in float32; one that only multiplies takes what is rounded."""
    return is_elementwise(op) and op.name != "mul"


def _lives(
    ops: Sequence[Op],
    uses: Uses,
    sources: dict[int, frozenset[int]],
    size_of: Callable[[int], int],
) -> list[Life]:
    """Values of storages, with the uses of what is computed again from them."""
    events: dict[int, set[int]] = defaultdict(set)
    for storage, readers in uses.readers.items():
        for source in sources.get(storage, (storage,)):
            events[source].update(readers)
    made = [s for s in uses.passing if s not in sources and events[s]]
    sizes_made: dict[int, set[int]] = defaultdict(set)
    for storage in made:
        sizes_made[uses.writers[storage][0]].add(size_of(storage))
    found = []
    for storage in made:
        points = sorted(events[storage].union(uses.writers[storage]))
        size, last = size_of(storage), points[-1]
        # Elementwise work writes where an operand was that nobody needs any more.
        in_place = ops[last].work is Work.ELEMENTWISE and size in sizes_made[last]
        found.append(Life(storage, size, tuple(points), last + (not in_place)))
    return found


def _attention(ops: Sequence[Op], uses: Uses) -> list[Life]:
    """What attention keeps for its gradient, in whole vectors, and its kernels' statistics.

    Operands are copied out of what they are parts of, unless they come from before the step.
    """
    found = []
    gradients = [i for i, op in enumerate(ops) if op.work is Work.ATTENTION and op.gradient]
    for index, op in enumerate(ops):
        if op.work is not Work.ATTENTION or index not in uses.writers.get(op.writes[0], ()):
            continue
        # Each statistic is an array of its own.
        count = 3 if op.gradient else 2
        size = _statistics_bytes(op) // count
        found += [Life(op.writes[0], size, (index,), index + 1)] * count
        later = [i for i in gradients if op.writes[0] in ops[i].reads]
        if op.gradient or not later:
            continue
        end = later[0]
        widths = (*op.head_dims[:1] * 2, *op.head_dims[1:])
        operands = list(zip(op.reads, op.read_bytes, widths, strict=False))
        for storage, size, width in (
            *operands,
            (op.writes[0], op.write_bytes[0], op.head_dims[1]),
        ):
            known = storage in uses.readers or storage in uses.writers
            if not known or (storage in uses.fixed and width % LANES == 0):
                continue
            whole = size * ceil_div(width, LANES) * LANES // width
            found.append(Life(storage, whole, (index, end), end + 1))
            if end in uses.readers[storage]:
                uses.readers[storage].remove(end)
    return found


def _statistics_bytes(op: Op) -> int:
    """Bytes of the softmax's statistics, while the flash kernel runs.

    A number for each query and head, in all lanes of a float32 vector: maximum and sum in the
    forward kernel, these and the product with the gradient in the backward one.
    """
    if not op.read_bytes or not op.head_dims[0]:
        return 0
    width = op.head_dims[1] if op.gradient else op.head_dims[0]
    rows = op.read_bytes[0] // (width * _ELEMENT_BYTES.get(op.dtype, 2))
    return rows * LANES * 4 * (3 if op.gradient else 2)
