# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that XLA's TPU compiler makes at the end of a step.

It orders a program so that values die early. A product that reads less than it makes frees nothing
by being computed: the gradient of a large layer of few rows, as VGG's classifier, waits until all
else is done, with the optimizer's update at its end. Until somebody reads it, or adds to it as the
next of several backward passes does, its place is free for others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from torchtpu_core.plan.fusible import COPIES
from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Category, Op, Phase


def places_of_late_gradients(
    ops: Sequence[Op], blocks: dict[int, Block], results: Container[int]
) -> dict[int, tuple[int, int]]:
    """From which operator to which the places of such gradients are free, by storage.

    Gradients as products make them, or as these are widened.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        results: storages that outlive the step.
    """
    found: dict[int, tuple[int, int]] = {}
    read: dict[int, int] = {}  # bytes, by what is made of them
    for index, op in enumerate(ops):
        for storage in {*op.reads, *op.writes} & found.keys():
            found[storage] = (0, min(index, found[storage][1]))
        if is_product(op) and op.phase is Phase.BACKWARD:
            read.update(dict.fromkeys(op.writes, sum(op.read_bytes)))
        elif op.name in COPIES and op.reads and op.reads[0] in read:
            read.update(dict.fromkeys(op.writes, read[op.reads[0]]))
        for storage in read.keys() & set(op.writes):
            gradient = storage in results and blocks[storage].category is Category.GRADIENTS
            if gradient and read[storage] < blocks[storage].size_bytes:
                found.setdefault(storage, (0, len(ops)))
    return found
