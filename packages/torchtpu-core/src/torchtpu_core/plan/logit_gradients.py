# SPDX-License-Identifier: Apache-2.0
"""Gradients of logits, which XLA's TPU compiler writes where the gradient of a bias sums them.

One fusion makes such a gradient, rounded to 16 bits for the products that read it, and its sums
over rows; without a bias each product computes it again from the logits. So it does in float32, of
which products read parts, and of classes that fill no lanes: there rows of tokens lie along the
lanes (`plan.result_layouts`), and the sums are a fusion of their own. Of labels that the step draws
XLA knows that none is ignored: rows have no factor of their own then, 0 or the loss' scale, and the
gradient is computed again as without a bias.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from torchtpu_core.plan.products import is_product
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.simulator.rates import LANES

_GRADIENT = "_log_softmax_backward_data"
_LOSSES = frozenset({"nll_loss_backward", "nll_loss2d_backward"})
#: The labels' place among their operands: gradient, log-probabilities, labels, sum of weights.
_LABELS = 2
_MOVES = frozenset({"clone", "_to_copy"})


def summed_logit_gradients(ops: Sequence[Op], blocks: dict[int, Block]) -> set[int]:
    """Those of a step.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    same = _made_alike(ops)
    made: set[int] = set()
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in ops:
        for storage in made.intersection(op.reads):
            readers[storage].append(op)
        fused = op.work is Work.ELEMENTWISE or op.name in _MOVES
        gradient = op.name == _GRADIENT and same.isdisjoint(op.reads[:1])
        if gradient or (fused and not made.isdisjoint(op.reads[:1])):
            made.update(op.writes)
    return {
        storage
        for storage, found in readers.items()
        if any(is_product(op) and op.dtype == "bf16" for op in found)
        and any(_sums_rows(op, storage, blocks) for op in found)
    }


def _made_alike(ops: Sequence[Op]) -> set[int]:
    """Gradients of losses whose labels the step makes of nothing, and what it moves of both.

    What it brings from the host are operands.
    """
    found: set[int] = set()
    for op in ops:
        nothing = op.work is Work.ELEMENTWISE and not op.reads
        moved = op.name in _MOVES and op.reads and found.issuperset(op.reads)
        loss = op.name in _LOSSES and not found.isdisjoint(op.reads[_LABELS : _LABELS + 1])
        if nothing or moved or loss:
            found.update(op.writes)
    return found


def _sums_rows(op: Op, storage: int, blocks: dict[int, Block]) -> bool:
    """Whether an operator sums a value over rows whose columns fill lanes."""
    if op.name != "sum" or storage not in blocks or op.writes[0] not in blocks:
        return False
    columns = math.prod(blocks[op.writes[0]].shape)
    return 1 < columns == blocks[storage].shape[-1] and columns % LANES == 0
