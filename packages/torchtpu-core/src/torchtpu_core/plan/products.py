# SPDX-License-Identifier: Apache-2.0
"""Which operators are products of matrices, and what is made for these or of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchtpu_core.plan.records import Op, Work
from torchtpu_core.plan.uses import Uses
from torchtpu_core.simulator.rates import LANES


def is_convolution(op: Op) -> bool:
    """Whether an operator is a convolution, which pads its operand by itself, or its gradient."""
    return op.name.startswith("convolution")


def is_product(op: Op) -> bool:
    """Whether an operator is a product of matrices, which takes operands within itself."""
    return op.work is Work.MATMUL and not is_convolution(op)


def feeds_product(ops: Sequence[Op], readers: Sequence[int]) -> bool:
    """Whether a product is among those who read a value."""
    return any(is_product(ops[i]) for i in readers)


def multiplies_narrow(op: Op) -> bool:
    """Whether an operator is a batched product of matrices that do not fill lanes."""
    batched = is_product(op) and bool(op.products) and op.products[0][0] > 1
    return batched and min(op.products[0][1:]) < LANES


def moves_out_of_tiles(
    ops: Sequence[Op],
    uses: Uses,
    op: Op,
    sources: frozenset[int],
    size: float,
    size_of: Callable[[int], float],
) -> bool:
    """Whether narrow matrices of batched products are moved, as heads are joined, to where they
    take fewer bytes.
    """
    made = [ops[uses.writers[s][-1]] for s in sources if uses.writers.get(s)]
    if op.name != "clone" or len(made) < len(sources):
        return False
    return all(map(multiplies_narrow, made)) and size < sum(map(size_of, sources))
