# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that XLA's TPU compiler makes at the end of a step.

It orders a program so that values die early. A product that reads less than it makes frees nothing
by being computed: the gradient of a large layer of few rows, as VGG's classifier, waits until all
else is done, with the optimizer's update at its end. Until then its place is free for others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from torchtpu_core.plan.fusible import COPIES
from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Category, Op, Phase


def late_gradients(
    ops: Sequence[Op], blocks: dict[int, Block], results: Container[int]
) -> set[int]:
    """Such gradients, as products make them or as these are widened.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        results: storages that outlive the step.
    """
    found = set()
    read: dict[int, int] = {}  # bytes, by what is made of them
    for op in ops:
        if is_product(op) and op.phase is Phase.BACKWARD:
            read.update(dict.fromkeys(op.writes, sum(op.read_bytes)))
        elif op.name in COPIES and op.reads and op.reads[0] in read:
            read.update(dict.fromkeys(op.writes, read[op.reads[0]]))
        for storage in read.keys() & set(op.writes):
            gradient = storage in results and blocks[storage].category is Category.GRADIENTS
            if gradient and read[storage] < blocks[storage].size_bytes:
                found.add(storage)
    return found
