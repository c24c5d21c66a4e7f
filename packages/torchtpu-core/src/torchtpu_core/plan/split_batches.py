# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few images, of which XLA's TPU compiler makes a larger batch.

It splits the last dimension of fewer than eight images into eight parts ("space to batch"), each
with a row that it shares with the next: more tiles are full then. As each convolution needs the
edges of its neighbours' parts, what it convolves is written, in the order of the images and in that
of the parts, and both are kept for the gradient of the weight; so are the gradients. For that of
the weight the image is written once for each place along the kernel's row, features along the
lanes, but not what is joined of several images. A group norm has its images put together
(`lowering.few_images`), in the dtype in which it reads them: these are kept, rows of pixels along
the lanes, and what convolutions read of them is made for each. Not modelled: how late weights'
gradients are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchtpu_core.lowering.few_images import PARTS, is_split
from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.plan.paddings import image_padding
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.vmem import Life
from torchtpu_core.units import ceil_div

_COPIES = frozenset({"_to_copy", "clone"})
_NORM = "native_group_norm"
_REPEATS = ("upsample_", "_upsample_")
#: What a convolution reads and makes.
_ENDS = ("result or its gradient", "image", "weight")


@dataclass(frozen=True, slots=True)
class _Convolution:
    """One of few images: its operand, and where it is computed."""

    index: int
    operand: int
    gradient: int | None
    taps: int


def part_padding(shape: Sequence[int]) -> float:
    """How many times their bytes split images take with the rows that parts share.

    >>> part_padding((2, 32, 64, 64, 64)), part_padding((8, 32, 64, 64))
    (1.125, 1.0)
    """
    if not is_split(shape):
        return 1.0
    return (ceil_div(shape[-1], PARTS) + 1) * PARTS / shape[-1]


def operands_of_parts(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Images that convolutions read of which the parts are written.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    return {one.operand for one in _convolutions(ops, blocks)} - _made_whole(ops, blocks)


def whole_images(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, float]:
    """Padded over plain elements of what group norms have put together, by storage.

    An image that is cast to a wider dtype for its norm, as under autocast, is put together before.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    narrow = {
        op.writes[0]: op.reads[0]
        for op in ops
        if op.name == "_to_copy" and op.reads and sum(op.read_bytes) < sum(op.write_bytes)
    }
    norms = (op.reads[0] for op in ops if op.name == _NORM and op.reads)
    read = {narrow.get(image, image) for image in norms} & blocks.keys()
    shapes = {s: blocks[s].shape for s in read if is_split(blocks[s].shape)}
    return {s: tile_padding(shape[-2], shape[1]) for s, shape in shapes.items()}


def lives_in_parts(
    ops: Sequence[Op], blocks: dict[int, Block], size_of: Callable[[int], int]
) -> list[Life]:
    """Second copies of operands and gradients, and operands for each tap.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        size_of: bytes of a storage.
    """
    read: dict[int, list[int]] = {}
    joined, whole = joined_images(ops), _made_whole(ops, blocks)
    found = []
    for one in _convolutions(ops, blocks):
        read.setdefault(one.operand, []).append(one.index)
        if one.gradient is None:
            continue
        found.append(Life(one.gradient, size_of(one.gradient), (one.index,), one.index + 1))
        if one.operand not in joined and one.operand not in whole:
            size = one.taps * _bytes_by_features(blocks[one.operand])
            found.append(Life(one.operand, size, (one.index,), one.index + 1))
    for operand, at in read.items():
        for points in [(index,) for index in at] if operand in whole else [tuple(at)]:
            found.append(Life(operand, size_of(operand), points, points[-1] + 1))
    return found


def _made_whole(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """What is made of few images put together, and what elementwise work makes of that alone."""
    found: set[int] = set()
    for op in ops:
        fused = op.work is Work.ELEMENTWISE or op.name in _COPIES
        whole = op.name == _NORM or op.name.startswith(_REPEATS)
        maps = [s for s in op.reads if s in blocks and is_split(blocks[s].shape)]
        if whole or (fused and maps and found.issuperset(maps)):
            found.update(op.writes)
    return found


def joined_images(ops: Sequence[Op]) -> set[int]:
    """What is joined of several tensors, and casts of that."""
    found: set[int] = set()
    for op in ops:
        if op.name == "cat" or (op.name in _COPIES and not found.isdisjoint(op.reads)):
            found.update(op.writes[:1])
    return found


def _bytes_by_features(block: Block) -> int:
    """Bytes of split images with the features, or the batch, along the lanes."""
    return round(block.size_bytes * image_padding(block.shape) * part_padding(block.shape))


def _convolutions(ops: Sequence[Op], blocks: dict[int, Block]) -> Iterator[_Convolution]:
    """Those of few images, of one group and stride 1, with a kernel of several columns."""
    for index, op in enumerate(ops):
        if not op.name.startswith("convolution") or not op.products or op.products[0][0] > 1:
            continue
        backward = op.name.endswith("backward")
        ends = op.reads[:3] if backward else (*op.writes[:1], *op.reads[:2])
        if len(ends) < len(_ENDS) or not all(one in blocks for one in ends):
            continue
        other, operand, weight = ends
        image, taps, made = (blocks[one].shape for one in (operand, weight, other))
        if not is_split(image) or len(made) != len(image) or taps[-1] == 1:
            continue
        if abs(image[-1] - made[-1]) < taps[-1]:
            yield _Convolution(index, operand, other if backward else None, taps[-1])
