# SPDX-License-Identifier: Apache-2.0
"""Which values of a step take HBM, and from which operator to which.

As in a program that XLA's TPU compiler makes of the step: operands and results have places of
their own throughout; other values live from the operator that makes them to the last that needs
them, whatever Python still refers to. What is computed again for its readers
(`plan.recomputed`), or stays in VMEM (`plan.vmem`), takes none.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from torchtpu_core.plan.attention_memory import attention_lives, moved_by_scores
from torchtpu_core.plan.broadcasts import broadcast_lives, broadcasts_of, written_for
from torchtpu_core.plan.fusible import is_elementwise
from torchtpu_core.plan.given_images import lives_of_given_images
from torchtpu_core.plan.grouped import lives_in_groups
from torchtpu_core.plan.images import products_of_images
from torchtpu_core.plan.late_gradients import places_of_late_gradients
from torchtpu_core.plan.paddings import row_padding
from torchtpu_core.plan.pooled import lives_of_pooled_images
from torchtpu_core.plan.product_results import within_results
from torchtpu_core.plan.products import is_convolution
from torchtpu_core.plan.recomputed import ends_of_products, sources_of
from torchtpu_core.plan.records import Block, Category, Op, Work
from torchtpu_core.plan.recurrent_memory import is_recurrent, lives_in_loops
from torchtpu_core.plan.result_layouts import copied_results
from torchtpu_core.plan.rows import RANK, RANK_OF_EXPERTS, rows_of, streams_of
from torchtpu_core.plan.shared_places import FreePlace, free_places
from torchtpu_core.plan.softmax_gradients import GRADIENT
from torchtpu_core.plan.split_batches import lives_in_parts
from torchtpu_core.plan.table_rows import lives_of_tables
from torchtpu_core.plan.tiles import padded_sizes
from torchtpu_core.plan.uses import Uses, uses_of
from torchtpu_core.plan.vmem import Life, Vmem, in_hbm
from torchtpu_core.plan.weight_updates import lives_of_updates, waits_of_updates
from torchtpu_core.plan.written import written_results
from torchtpu_core.simulator.rates import SUBLANES

_STATE = (Category.PARAMETERS, Category.OPTIMIZER)


@dataclass(slots=True)
class Lifetimes:
    """What takes HBM in a step.

    Attributes:
        fixed: bytes of storages that take it throughout.
        lives: values that take it for a part of the step.
        resident: storages that take none, as they stay in VMEM.
        scores: attention whose scores, or kernels' statistics, stay there, by index, and the bytes
            that those of its values move which do not.
        places: of results while these are not written.
    """

    fixed: dict[int, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    resident: set[int] = field(default_factory=set)
    scores: dict[int, float] = field(default_factory=dict)
    places: list[FreePlace] = field(default_factory=list)


def lifetimes_of(
    ops: Sequence[Op],
    blocks: dict[int, Block],
    start: int,
    vmem: Vmem,
    *,
    keeps_gelus: bool = False,
) -> Lifetimes:
    """What takes HBM in a step of operators.

    Args:
        ops: the operators of the step.
        blocks: storages by identifier.
        start: operators recorded before the step.
        vmem: room in VMEM for values.
        keeps_gelus: whether XLA writes GELUs of all products of bfloat16 for the chip.
    """
    uses = uses_of(ops, blocks, start)
    size_of = _Sizes(ops, blocks, uses)
    kept = attention_lives(ops, blocks, uses)
    broadcasts = broadcasts_of(ops, blocks, uses)
    written = written_results(ops, blocks, written_for(broadcasts), keeps_gelus=keeps_gelus)
    sources = sources_of(ops, uses, size_of, written)
    ends = ends_of_products(ops, blocks, uses, sources)
    values = _lives(ops, uses, sources, ends, size_of, written.gradients)
    nowhere = within_results(ops, blocks, uses, sources)
    values = [life for life in values if life.storage not in nowhere]
    lives = [*(life for life in values if blocks[life.storage].category not in _STATE), *kept]
    lives += [*broadcast_lives(broadcasts), *copied_results(ops, blocks, uses)]
    lives += [*lives_in_groups(ops, blocks), *lives_in_parts(ops, blocks, size_of)]
    lives += [*lives_in_loops(ops), *lives_of_updates(ops, blocks)]
    lives += lives_of_pooled_images(ops, sources, size_of, vmem.room_bytes)
    lives += [*lives_of_tables(ops, blocks, uses), *lives_of_given_images(ops, blocks, uses)]
    fixed = {storage: size_of(storage) for storage in uses.fixed}
    passing = []
    for storage, size in fixed.items():
        read = set(uses.readers.get(storage, ()))
        for index in sorted(read.union(uses.writers.get(storage, ()))):
            points = (max(0, index - 1), index) if index in read else (index,)
            passing.append(Life(storage, size, points, index + 1))
    held = list(_held(blocks, uses, start, len(ops)))
    loops = {index for index, op in enumerate(ops) if is_recurrent(op)}
    out = in_hbm(lives, passing, vmem, loops)
    resident = {life.storage for life in lives} - {life.storage for life in out}
    scores = moved_by_scores(ops, blocks, kept, out, vmem.room_bytes)
    free = places_of_late_gradients(ops, blocks, fixed) | waits_of_updates(ops, blocks)
    places = free_places(uses, blocks, start, fixed, free)
    return Lifetimes(fixed, [*out, *held], resident, scores, places)


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
        self._padded = padded_sizes(ops, blocks)
        self._blocks = blocks
        ranks = (RANK, RANK_OF_EXPERTS)
        rows = {t for rank in ranks for t, kept in streams_of(ops, blocks, rank).items() if kept}
        images = products_of_images(ops, blocks)
        passing = (s for s in uses.passing if s not in images)
        self._wide = {s for s in passing if _keeps_sums(ops, blocks, uses, s, rows)}
        parts = ((s, _part_bytes(ops, blocks, uses, s)) for s in uses.passing)
        self._parts = {storage: size for storage, size in parts if size}
        self._rounded = {s: _rounded_bytes(ops, blocks, uses, s) for s in uses.passing}

    def __call__(self, storage: int) -> int:
        if storage in self._parts:
            return self._parts[storage]
        block = self._blocks.get(storage)
        size = self._padded.get(storage, block.size_bytes if block is not None else 0)
        return 2 * size if storage in self._wide else self._rounded.get(storage) or size


def _part_bytes(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int) -> int:
    """Bytes of a product's result of which a part of the columns is all that is read; or 0.

    Such is the gradient of what was joined with an operand of the step: XLA multiplies by a part of
    the weight. Reads of the same half at least are taken for reads of the same part.
    """
    op, block = ops[uses.writers[storage][0]], blocks[storage]
    if op.work is not Work.MATMUL or is_convolution(op) or len(block.shape) < 2:
        return 0
    read = {
        size
        for index in uses.readers[storage]
        for one, size in zip(ops[index].reads, ops[index].read_bytes, strict=True)
        if one == storage
    }
    part = min(read, default=0)
    if len(read) != 1 or not block.size_bytes < 2 * part < 2 * block.size_bytes:
        return 0
    columns = block.shape[-1] * part // block.size_bytes
    return round(part * row_padding((*block.shape[:-1], columns)))


def _rounded_bytes(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses, storage: int) -> int:
    """Bytes of a product's result as its elementwise end rounds it, before it is written; or 0.

    So sums of int8 products are scaled and written as bfloat16.
    """
    if ops[uses.writers[storage][0]].work is not Work.MATMUL:
        return 0
    count = math.prod(blocks[storage].shape)
    for op in itertools.takewhile(is_elementwise, uses.readers_alone(ops, storage)):
        made = op.writes[0]
        if made not in blocks or math.prod(blocks[made].shape) != count:
            return 0
        if op.name == "_to_copy" and blocks[made].size_bytes < blocks[storage].size_bytes:
            return blocks[made].size_bytes
    return 0


def _keeps_sums(
    ops: Sequence[Op],
    blocks: dict[int, Block],
    uses: Uses,
    storage: int,
    rows: Container[tuple[int, ...]],
) -> bool:
    """Whether a product's result is kept as the float32 sums that it is made of.

    Where elementwise work reads it in another shape, XLA moves the rounding to bfloat16 past the
    change of shape, into the readers' fusions, unless one of them takes it rounded. A shape that
    elementwise work changes back at once is no change, and neither is one of rows ``[B, T, D]``
    that fill no tiles: XLA's product has that shape itself.
    """
    op, block = ops[uses.writers[storage][0]], blocks[storage]
    if op.work is not Work.MATMUL or op.dtype != "bf16":
        return False
    readers = [ops[index] for index in uses.readers[storage]]
    if not readers or not all(_takes_float32(reader, ops, uses) for reader in readers):
        return False
    if _is_for_softmax(ops, uses, storage):
        return False
    rank = len(block.shape)

    def differs(shape: Sequence[int]) -> bool:
        tokens = shape[-2] if len(shape) > 1 else 0
        kept = tuple(shape[:-1]) in rows and (len(shape) == RANK or block.shape == rows_of(shape))
        return len(shape) != rank and tokens % SUBLANES == 0 and not kept

    def is_changed(reader: Op) -> bool:
        if reader.name == "glu" and is_convolution(op):  # it reads halves of the features
            return True
        made = reader.writes[:1]
        users = [ops[i] for storage in made for i in uses.readers[storage]]
        fused = [user.writes[0] for user in users if user.work is Work.ELEMENTWISE]
        return all(differs(blocks[storage].shape) for storage in (*made, *fused))

    return any(is_changed(reader) for reader in readers)


def _is_for_softmax(ops: Sequence[Op], uses: Uses, storage: int) -> bool:
    """Whether a product's result is multiplied by a softmax, at its end, for its gradient."""
    alone = itertools.takewhile(is_elementwise, uses.readers_alone(ops, storage))
    return any(op.name == GRADIENT for op in alone)


def _takes_float32(op: Op, ops: Sequence[Op], uses: Uses) -> bool:
    """Whether an operator computes in float32.

    What compares takes rounded values, and so does what multiplies whole tensors, unless that is
    summed, and what moves them for products.
    """
    if not is_elementwise(op) or op.name == "relu":
        return False
    users = [ops[i] for storage in op.writes for i in uses.readers[storage]]
    if op.name == "mul" and min(op.read_bytes, default=0) >= op.write_bytes[0]:
        return bool(users) and all(user.name == "sum" for user in users)
    moved = op.name == "clone" and bool(users)
    return not (moved and all(user.work is Work.MATMUL for user in users))


def _events(
    uses: Uses, sources: dict[int, frozenset[int]], ends: dict[int, int]
) -> tuple[dict[int, set[int]], set[tuple[int, int]]]:
    """When each storage is read, and at which of these by the elementwise end of a product.

    What is computed again is read for the readers of its result, or where a product computes it.
    """
    events: dict[int, set[int]] = defaultdict(set)
    at_ends: set[tuple[int, int]] = set()
    product_of = {uses.writers[storage][-1]: product for storage, product in ends.items()}
    for storage, readers in uses.readers.items():
        product = ends.get(storage, -1)
        for source in sources.get(storage, (storage,)):
            written = max(uses.writers.get(source, ()), default=-1)
            for index in [product] if written < product else readers:
                end = product_of.get(index, product)
                if written < end:
                    at_ends.add((source, end))
                events[source].add(end if written < end else index)
    return events, at_ends


def _lives(
    ops: Sequence[Op],
    uses: Uses,
    sources: dict[int, frozenset[int]],
    ends: dict[int, int],
    size_of: Callable[[int], int],
    beside: Container[int],
) -> list[Life]:
    """Values of storages, with the uses of what is computed again from them.

    Those `beside` others lie in the place of none of their operands.
    """
    events, at_ends = _events(uses, sources, ends)
    made = [s for s in uses.passing if s not in sources and events[s]]
    sizes_made: dict[int, set[int]] = defaultdict(set)
    for storage in made:
        if storage not in beside:
            sizes_made[uses.writers[storage][0]].add(size_of(storage))
    found = []
    for storage in made:
        points = sorted(events[storage].union(uses.writers[storage]))
        size, last = size_of(storage), points[-1]
        # Elementwise work writes where an operand was that nobody needs any more.
        takes = ops[last].work is Work.ELEMENTWISE or (storage, last) in at_ends
        in_place = takes and size in sizes_made[last]
        found.append(Life(storage, size, tuple(points), last + (not in_place)))
    return found
