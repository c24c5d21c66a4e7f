# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows XLA's TPU compiler moves before it gathers them, and after it adds to them.

Operands and results of a program lie so that tiles waste least: a table of 100,000 rows of 64
features has its rows along the lanes. Rows are gathered, and added to by index, with features along
the lanes, of which they take 128: each gather has a copy of the table, and each gradient is moved
into its place (`lowering.embedding`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.layout import tile_padding
from torchtpu_core.plan.gathers import is_gather, is_sum
from torchtpu_core.plan.op_work import BAGS
from torchtpu_core.plan.paddings import row_padding
from torchtpu_core.plan.records import Block, Op
from torchtpu_core.plan.uses import Uses
from torchtpu_core.plan.vmem import Life

_RANK = 2


def lives_of_tables(ops: Sequence[Op], blocks: dict[int, Block], uses: Uses) -> list[Life]:
    """Copies of tables, and gradients before they are moved.

    Args:
        ops: the operators of a step.
        blocks: storages by identifier.
        uses: of its storages.
    """
    found = []
    for index, op in enumerate(ops):
        if not op.reads or not op.writes:
            continue
        looks_up = is_gather(op) or op.name in BAGS
        table = op.reads[0] if looks_up else op.writes[0]
        size = _size_in_rows(blocks[table]) if table in uses.fixed else 0
        if looks_up and size:
            found.append(Life(op.writes[0], size, (max(0, index - 1), index), index + 1))
        elif is_sum(op) and size:
            found.append(Life(op.reads[0], size, (index,), index + 1))
    return found


def _size_in_rows(table: Block) -> int:
    """Bytes of a table with features along the lanes, unless that is how it lies; else 0."""
    if len(table.shape) != _RANK or row_padding(table.shape) <= tile_padding(*table.shape):
        return 0
    return round(table.size_bytes * row_padding(table.shape))
