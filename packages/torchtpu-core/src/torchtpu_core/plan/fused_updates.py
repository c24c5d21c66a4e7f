# SPDX-License-Identifier: Apache-2.0
"""Which elementwise operators are one fusion of several results, as an optimizer's update is.

XLA fuses elementwise work of one shape of which one part reads what another makes, even if that
is kept, unless other work must be done between the two. Reductions and norms end a fusion here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.plan.fusible import is_elementwise, reduces
from torchtpu_core.plan.records import Block, Op


def fusions(ops: Sequence[Op], blocks: dict[int, Block]) -> list[int]:
    """For each operator the first one of its fusion, which is itself if it is alone.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
    """
    first = list(range(len(ops)))
    joins = [is_elementwise(op) and not reduces(op) for op in ops]
    elements = [math.prod(blocks[op.writes[0]].shape) if op.writes else 0 for op in ops]
    level = [0] * len(ops)  # how much other work must be done before
    writer: dict[int, int] = {}
    for index, op in enumerate(ops):
        before = {writer[storage] for storage in op.reads if storage in writer}
        level[index] = max(
            (level[w] + (not (joins[w] and joins[index])) for w in before), default=0
        )
        for other in before:
            alike = level[index] == level[other] and elements[index] == elements[other]
            if alike and joins[index] and joins[other]:
                ends = _first(first, index), _first(first, other)
                first[max(ends)] = min(ends)
        writer.update(dict.fromkeys(op.writes, index))
    return [_first(first, index) for index in range(len(ops))]


def _first(first: list[int], index: int) -> int:
    while first[index] != index:
        first[index] = first[first[index]]
        index = first[index]
    return index
