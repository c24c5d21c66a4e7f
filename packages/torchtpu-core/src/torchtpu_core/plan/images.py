# SPDX-License-Identifier: Apache-2.0
"""Linear layers over images, which multiply them as convolutions leave them (`lowering.images`).

XLA's TPU compiler keeps such a product rounded to 16 bits, and writes what an error function makes
of it beside it: it does not compute that again for the product that reads it and for the gradient
of that one's weight. A GELU by tanh it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    images: dict[int, _Image] = {}
    found: set[int] = set()
    for op in ops:
        made = [storage for storage in op.writes if storage in blocks]
        if op.name.startswith("convolution"):
            maps = [s for s in made[:1] if len(blocks[s].shape) >= _RANK]
            images.update((s, _Image(*blocks[s].shape[:2])) for s in maps)
        elif op.work is Work.MATMUL and op.products:
            product = _multiplied(op, images)
            if product is not None and op.dtype == "bf16":
                images.update(dict.fromkeys(made[:1], product))
                found.update(made[:1])
        elif op.work is Work.ELEMENTWISE or op.name in _MOVES:
            for read in (s for s in op.reads if s in images and s in blocks):
                count = math.prod(blocks[read].shape)
                alike = (s for s in made if math.prod(blocks[s].shape) == count)
                images.update(dict.fromkeys(alike, images[read]))
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


class _Image(NamedTuple):
    """How many there are in a batch, with how many features."""

    count: int
    features: int


def _multiplied(op: Op, images: Mapping[int, _Image]) -> _Image | None:
    """What a linear layer over features, or over positions, makes of an image, if it reads one."""
    batch, rows, summed, columns = op.products[0]
    for image in (images[s] for s in op.reads if s in images):
        if batch == 1 and summed == image.features:
            return _Image(image.count, columns)
        if batch == 1 and rows == image.count * image.features:
            return image
    return None
