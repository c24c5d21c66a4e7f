# SPDX-License-Identifier: Apache-2.0
"""Linear layers over images, which multiply them as convolutions leave them (`lowering.images`).

XLA's TPU compiler keeps such a product rounded to 16 bits, and writes what an error function makes
of it beside it: it does not compute that again for the product that reads it and for the gradient
of that one's weight. A GELU by tanh it does, and so it does either of pixels that are joined to
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Op, Work

#: Dimensions of an image of a convolution.
_RANK = 4
_MOVES = frozenset({"cat", "clone", "_to_copy"})


@dataclass(frozen=True, slots=True)
class Image:
    """What convolutions, norms, elementwise work and linear layers pass on.

    Attributes:
        batch: how many there are.
        features: of each pixel.
        is_map: whether the pixels are dimensions of their own, and not joined to tokens.
    """

    batch: int
    features: int
    is_map: bool


def images_of(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, Image]:
    """Storages that lie as convolutions' images do: features along lanes, batch along sublanes.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    found: dict[int, Image] = {}
    for op in ops:
        made = [storage for storage in op.writes if storage in blocks]
        if op.name.startswith("convolution"):
            maps = [s for s in made[:1] if len(blocks[s].shape) >= _RANK]
            shapes = ((s, blocks[s].shape) for s in maps)
            found.update((s, Image(shape[0], shape[1], is_map=True)) for s, shape in shapes)
        elif op.work is Work.MATMUL and op.products:
            product = _multiplied(op, found)
            if product is not None and op.dtype == "bf16":
                found.update(dict.fromkeys(made[:1], product))
        elif op.work is Work.ELEMENTWISE or op.name in _MOVES:
            for read in (s for s in op.reads if s in found and s in blocks):
                count = math.prod(blocks[read].shape)
                for storage in made:
                    shape = blocks[storage].shape
                    if math.prod(shape) == count:
                        found[storage] = replace(found[read], is_map=len(shape) >= _RANK)
                    elif _is_of_features(shape, blocks[read].shape):
                        found[storage] = replace(found[read], features=shape[1])
    return found


def _is_of_features(shape: Sequence[int], image: Sequence[int]) -> bool:
    """Whether a shape is that of some of an image's features, as of a gate's."""
    return len(shape) == len(image) >= _RANK and (shape[0], *shape[2:]) == (image[0], *image[2:])


def products_of_images(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of products of 16 bits of images.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    linear = {s for op in ops if op.work is Work.MATMUL for s in op.writes}
    linear -= {s for op in ops if op.name.startswith("convolution") for s in op.writes}
    return linear & images_of(ops, blocks).keys()


def kept_beside(ops: Sequence[Op], blocks: dict[int, Block], *, of_all: bool = False) -> set[int]:
    """Results of error functions that are written beside the images they are made of.

    Those of products and of convolutions, also as they are moved for the next product.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        of_all: of all products of bfloat16, not of those of images alone.
    """
    if of_all:
        rounded = (op for op in ops if op.work is Work.MATMUL and op.dtype == "bf16")
        products = {s for op in rounded for s in op.writes}
    else:
        products = products_of_images(ops, blocks) & _products_of_maps(ops, blocks)
    images = {s for op in ops if op.name.startswith("convolution") for s in op.writes[:1]}
    found: set[int] = set()
    for op in ops:
        by_error_function = op.name == "gelu" and not op.approximate
        read = (products | images) if by_error_function else found if op.name == "clone" else set()
        if not read.isdisjoint(op.reads):
            found.update(op.writes)
    return found


def _products_of_maps(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Results of products of images whose pixels are dimensions of their own."""
    images = images_of(ops, blocks)
    return {
        storage
        for op in ops
        if is_product(op)
        if any(images[s].is_map for s in op.reads if s in images)
        for storage in op.writes
    }


def _multiplied(op: Op, images: Mapping[int, Image]) -> Image | None:
    """What a linear layer over features, or over positions, makes of an image, if it reads one."""
    batch, rows, summed, columns = op.products[0]
    for image in (images[s] for s in op.reads if s in images):
        if batch == 1 and summed == image.features:
            return replace(image, features=columns)
        if batch == 1 and rows == image.batch * image.features:
            return image
    return None
