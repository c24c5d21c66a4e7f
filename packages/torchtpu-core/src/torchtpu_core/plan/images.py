# SPDX-License-Identifier: Apache-2.0
"""Linear layers over images, which multiply them as convolutions leave them (`lowering.images`).

XLA's TPU compiler keeps such a product rounded to 16 bits, and writes what an error function makes
of it beside it: it does not compute that again for the product that reads it and for the gradient
of that one's weight. A GELU by tanh it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torchtpu_core.plan.records import Block, Op, Work

#: Dimensions of an image of a convolution.
_RANK = 4
_MOVES = frozenset({"clone", "_to_copy"})


def products_of_images(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of products of 16 bits of images.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    features: dict[int, int] = {}  # of images, by storage
    found: set[int] = set()
    for op in ops:
        made = [storage for storage in op.writes if storage in blocks]
        if op.name.startswith("convolution"):
            maps = [s for s in made[:1] if len(blocks[s].shape) >= _RANK]
            features.update((s, blocks[s].shape[1]) for s in maps)
        elif op.work is Work.MATMUL and op.products:
            width = _multiplied(op, features)
            if width and op.dtype == "bf16":
                features.update(dict.fromkeys(made[:1], width))
                found.update(made[:1])
        elif op.work is Work.ELEMENTWISE or op.name in _MOVES:
            for count, width in _images(op.reads, blocks, features):
                alike = (s for s in made if math.prod(blocks[s].shape) == count)
                features.update(dict.fromkeys(alike, width))
    return found


def kept_beside(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of error functions that are written beside the products they are made of.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    products = products_of_images(ops, blocks)
    found = (op for op in ops if op.name == "gelu" and not op.approximate)
    return {s for op in found if not products.isdisjoint(op.reads) for s in op.writes}


def _images(
    reads: Iterable[int], blocks: dict[int, Block], features: dict[int, int]
) -> list[tuple[int, int]]:
    """Elements and features of the images among operands."""
    known = (s for s in reads if s in features and s in blocks)
    return [(math.prod(blocks[s].shape), features[s]) for s in known]


def _multiplied(op: Op, features: dict[int, int]) -> int:
    """Features of what a linear layer makes of an image; 0 if it reads none.

    It is over features or over positions; what joins features with others is no image.
    """
    batch, rows, summed, columns = op.products[0]
    for width in (features[s] for s in op.reads if s in features):
        if batch == 1 and summed == width:
            return columns
        if batch == 1 and rows % width == 0 and summed % width:
            return width
    return 0
