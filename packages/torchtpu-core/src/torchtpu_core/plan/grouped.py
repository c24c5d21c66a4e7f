# SPDX-License-Identifier: Apache-2.0
"""Convolutions of several groups, as XLA's TPU compiler computes them: over a dimension of groups.

It makes ``[N, G, C/G, ...]`` of an image ``[N, C, ...]``, whose batch and features of one group lie
along lanes and sublanes: 16 features of each group of 8 images take eight times their bytes. What
it convolves so is written in that order, and kept for the gradient of the weight; so are the
gradients. Sums leave it in that order and in float32, for a moment. Programs merge narrow groups
(`lowering.merged_groups`); depthwise convolutions are computed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.lowering.merged_groups import merged_count, merged_for
from torchtpu_core.plan.products import is_convolution
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.vmem import Life

_SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Grouped:
    """A convolution of several groups: its operand's and its result's padding in their order."""

    op: Op
    index: int
    gradient: bool
    operand: int
    read: float
    made: float


def operands_of_groups(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, float]:
    """How many times their bytes the images take that such convolutions read, by storage.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    return {one.operand: one.read for one in _convolutions(ops, blocks)}


def lives_in_groups(ops: Sequence[Op], blocks: dict[int, Block]) -> list[Life]:
    """Sums, and a gradient and what is made of it, in the order of groups.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    found = []
    for one in _convolutions(ops, blocks):
        if one.gradient:
            given, made = one.op.reads[0], one.op.writes[0]
            size = blocks[given].size_bytes * one.made
            if blocks[made].shape == blocks[one.operand].shape:
                size += blocks[made].size_bytes * one.read
        else:
            made = one.op.writes[0]
            size = math.prod(blocks[made].shape) * _SUM_BYTES * one.made
        found.append(Life(made, round(size), (one.index,), one.index + 1))
    return found


def merged_products(op: Op) -> Iterator[tuple[int, int, int, int]]:
    """An operator's products `(batch, m, k, n)`, those of a convolution's narrow groups merged.

    The largest dimension is that of places, or of taps of many features; no group has it.
    """
    for batch, *sides in op.products:
        width = min(sides)
        count = merged_count(batch, width, width) if is_convolution(op) else 1
        places = sides.index(max(sides))
        m, k, n = (size if i == places else count * size for i, size in enumerate(sides))
        yield batch // count, m, k, n


def _convolutions(ops: Sequence[Op], blocks: dict[int, Block]) -> Iterator[_Grouped]:
    """Those of several groups, narrow ones merged, which have several features each."""
    for index, op in enumerate(ops):
        if not op.name.startswith("convolution") or not op.products or not op.writes:
            continue
        groups, gradient = op.products[0][0], op.name.endswith("backward")
        ends = op.reads[:3] if gradient else (*op.writes[:1], *op.reads[:2])
        known = all(s in blocks and len(blocks[s].shape) > 2 for s in ends)
        if groups == 1 or len(ends) < 3 or not known or op.writes[0] not in blocks:
            continue
        made, image, weight = (blocks[s].shape for s in ends)
        # The image's storage may hold more features than are read of it; the weight's may not.
        inner, outer = weight[1], weight[0] // groups
        if weight[0] != made[1] == weight[1] * groups:  # transposed
            inner, outer = outer, inner
        count = merged_for(image, weight, groups)
        inner, outer = count * inner, count * outer
        if count < groups and inner > 1 and outer > 0:
            read, moved = tile_padding(image[0], inner), tile_padding(image[0], outer)
            yield _Grouped(op, index, gradient, ends[1], read, moved)
