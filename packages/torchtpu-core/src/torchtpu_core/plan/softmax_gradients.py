# SPDX-License-Identifier: Apache-2.0
"""Gradients of softmaxes, which XLA's TPU compiler writes for the products that read them.

The product that such a gradient is made of is multiplied by the softmax at its end, and rounded
there if it is of 16 bits. The sum of its rows is part of the fusion that makes the gradient: this
is not elementwise on its operands, so that it needs a place beside them. Gradients of
log-probabilities, as of cross entropy, have no such sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.plan.records import Op, Work

_MOVES = frozenset({"clone", "_to_copy"})
GRADIENT = "_softmax_backward_data"


def softmax_gradients(ops: Sequence[Op]) -> set[int]:
    """Those of a step, and what elementwise work makes of each, as its scale or a mask does.

    Args:
        ops: the operators of a step.
    """
    found: set[int] = set()
    for op in ops:
        fused = op.work is Work.ELEMENTWISE or op.name in _MOVES
        if op.name == GRADIENT or (fused and not found.isdisjoint(op.reads[:1])):
            found.update(op.writes)
    return found
