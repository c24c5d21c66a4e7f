# SPDX-License-Identifier: Apache-2.0
"""What attention keeps in HBM for its gradient, and while it computes.

The flash kernels keep operands and result, in whole vectors, and have statistics of the softmax
while they run. What they do not compute (few scores, a mask) has the softmax itself in HBM while it
runs, in float32 with keys along the lanes, and so has its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence

from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.lowering.padded_heads import PADDED, PADDED_TOGETHER
from torchtpu_core.plan.images import products_of_images
from torchtpu_core.plan.paddings import matrix_padding
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.rates import LANES, SUBLANES
from torchtpu_core.units import ceil_div

_ELEMENT_BYTES = {"f32": 4, "f64": 8}


def attention_lives(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> list[Life]:
    """Values of attention that no operator of the step writes, or that it copies.

    Uses by gradients that read such a copy are taken off those of the original.
    """
    found: list[Life] = []
    images = products_of_images(ops, blocks)
    gradients = [i for i, op in enumerate(ops) if op.work is Work.ATTENTION and op.gradient]
    for index, op in enumerate(ops):
        if op.work is not Work.ATTENTION or index not in uses.writers.get(op.writes[0], ()):
            continue
        if op.gradient:
            continue
        later = [i for i in gradients if op.writes[0] in ops[i].reads]
        shape = blocks[op.writes[0]].shape
        if op.flash:
            if has_statistics(op, uses.readers.keys() | uses.fixed):
                found += _statistics(op, index, 2)
            found += [life for i in later for life in _statistics(ops[i], i, 3)]
        else:
            size = _softmax_bytes(op, shape)
            both = (index, *later)
            found += [Life(ops[i].writes[0], size, (i,), i + 1) for i in both]
        if not later:
            continue
        padded = _heads_of_tokens(op, blocks) if not op.flash else ()
        found += _copies(op, index, later[0], shape, uses, padded)
        if op.flash:
            continue
        if padded:
            uses.readers[op.writes[0]].remove(later[0])  # it sums scores instead
            continue
        found.append(_unrounded(op, index, later[0], shape))
        if op.reads[2:3] and op.reads[2] not in images:
            found += _values(op, index, later[0], shape)
    return found


def _heads_of_tokens(op: Op, blocks: dict[int, Block]) -> tuple[int, ...]:
    """Operands that are moved once more for the gradient (`lowering.padded_heads`).

    Queries and keys whose heads would take far more than the tokens that they are parts of, and
    values that are parts of the same.
    """
    heads, tokens, width = (*blocks[op.writes[0]].shape[-3:-1], op.head_dims[0])
    together = len(set(op.reads[:3])) == 1
    if tile_padding(tokens, width) < (PADDED_TOGETHER if together else PADDED):
        return ()
    whole = [s for s in op.reads[:2] if blocks[s].shape[-1:] != (width,) or heads == 1]
    return tuple(whole)


def moved_by_scores(
    ops: Sequence[Op],
    blocks: dict[int, Block],
    lives: Sequence[Life],
    out: Sequence[Life],
    room_bytes: int,
) -> dict[int, float]:
    """Attention whose scores, or statistics, may be in VMEM, by index: bytes of HBM that they move.

    Scores are there if they have room, and their gradients if these have room beside them; XLA
    prefers them to all that waits between operators. Scores that fill tiles of queries and not of
    keys it copies into another layout. Kernels have what they read in VMEM if their statistics are.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        lives: as `attention_lives` finds them.
        out: those of all lives that take a place in HBM.
        room_bytes: room for values in VMEM.
    """
    placed = {id(life) for life in out}
    own = [life for life in lives if len(life.uses) == 1 and not ops[life.first].drawn]
    others = {life.first for life in own if id(life) in placed}
    found = {}
    for life in own:
        op, room = ops[life.first], room_bytes
        if op.flash and life.first not in others:
            found[life.first] = 0.0
        elif not op.flash and _fills_tiles(op, blocks[life.storage].shape):
            moved = 0.0
            width = _ELEMENT_BYTES.get(op.dtype, 2) if op.gradient else 0
            for size in (life.size_bytes, life.size_bytes * width // 4):
                fits = size < room
                room -= size * fits
                moved += cal.SCORE_ACCESSES.value * size * (not fits)
            found[life.first] = moved
    return found


def _fills_tiles(op: Op, shape: Sequence[int]) -> bool:
    """Whether keys do, if queries do."""
    return _keys(op, shape) % SUBLANES == 0 or shape[-2] % SUBLANES != 0


def _keys(op: Op, shape: Sequence[int]) -> int:
    """Keys of each query."""
    return round(op.scores / max(1, math.prod(shape[:-1])))


def _softmax_bytes(op: Op, shape: Sequence[int]) -> int:
    """In float32, with whole vectors of keys."""
    return math.prod(shape[:-1]) * ceil_div(_keys(op, shape), LANES) * LANES * 4


def _copies(
    op: Op, index: int, end: int, shape: Sequence[int], uses: Uses, again: Sequence[int]
) -> Iterator[Life]:
    """Operands, and a kernel's result, as they are read, until the gradient.

    Kernels take whole vectors; else rows and heads lie as that wastes less. Operands are copied out
    of what they are parts of, unless they come from before the step. Those of `again` are moved
    for each of both.
    """
    widths = (*op.head_dims[:1] * 2, *op.head_dims[1:])
    rows = (0, 0, 0) if op.flash else (shape[-2], *[_keys(op, shape)] * 2)
    values = list(zip(op.reads, op.read_bytes, widths, rows, strict=False))
    if op.flash:
        values.append((op.writes[0], op.write_bytes[0], op.head_dims[1], 0))
    for storage, size, width, tokens in values:
        known = storage in uses.readers or storage in uses.writers
        if not known or (storage in uses.fixed and width % LANES == 0):
            continue
        whole = size * ceil_div(width, LANES) * LANES // width
        if not op.flash:
            whole = round(size * matrix_padding((tokens, width)))
        if storage in again:
            yield from (Life(storage, whole, (one,), one + 1) for one in (index, end))
            continue
        yield Life(storage, whole, (index, end), end + 1)
        if end in uses.readers[storage]:
            uses.readers[storage].remove(end)


def _values(op: Op, index: int, end: int, shape: Sequence[int]) -> Iterator[Life]:
    """The values that are a part of one projection with others: they are copied out of it, too,
    where rows of tokens fill tiles, unless that projection has the shape of an image.
    """
    if op.reads[2:3] and op.reads[2] in op.reads[:2] and shape[-2] % SUBLANES == 0:
        yield Life(op.reads[2], op.read_bytes[2], (index, end), end + 1)


def _unrounded(op: Op, index: int, end: int, shape: Sequence[int]) -> Life:
    """A result ``[B, H, T, E]`` in float32, which XLA's gradient reads beside the rounded one."""
    size = round(math.prod(shape) * 4 * matrix_padding(shape))
    return Life(op.writes[0], size, (index, end), end + 1)


def has_statistics(op: Op, read: Container[int]) -> bool:
    """Whether a flash kernel writes the softmax's statistics: for a gradient, not for inference."""
    return op.gradient or any(one in read for one in op.writes[1:2])


def statistic_bytes(op: Op) -> int:
    """Of one statistic of the softmax: a number for each query and head, in all lanes of a float32
    vector.
    """
    if not op.read_bytes or not op.head_dims[0]:
        return 0
    width = op.head_dims[1] if op.gradient else op.head_dims[0]
    return op.read_bytes[0] // (width * _ELEMENT_BYTES.get(op.dtype, 2)) * LANES * 4


def _statistics(op: Op, index: int, count: int) -> list[Life]:
    """The softmax's statistics, while the flash kernel runs, each an array of its own.

    Maximum and sum in the forward kernel; in the backward one also the product with the gradient.
    """
    size = statistic_bytes(op)
    return [Life(op.writes[0], size, (index,), index + 1)] * count if size else []
