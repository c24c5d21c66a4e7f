# SPDX-License-Identifier: Apache-2.0
"""Rows that are gathered, and sums by index, as XLA's TPU compiler makes them.

A gather from a table that fits the VMEM of one operation is computed within the sum that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchtpu_core.plan.op_work import GATHERS
from torchtpu_core.plan.records import Op
from torchtpu_core.simulator.calibration import SCOPED_VMEM_BYTES

_SUMS = frozenset(
    [
        "_embedding_bag_backward",
        "embedding_dense_backward",
        "index_add",
        "index_add_",
        "index_put",
        "index_put_",
        "scatter_add",
        "scatter_add_",
    ]
)


def is_gather(op: Op) -> bool:
    """Whether an operator reads rows of its first operand."""
    return op.name in GATHERS


def is_sum(op: Op) -> bool:
    """Whether an operator adds rows to those of its result."""
    return op.name in _SUMS


def within_sums(op: Op, readers: Sequence[Op], size_of: Callable[[int], float]) -> bool:
    """Whether a gather's rows are never written, as they are computed where they are added.

    Args:
        op: any operator.
        readers: of its result.
        size_of: bytes of a storage.
    """
    if not is_gather(op) or not op.reads or not all(map(is_sum, readers)):
        return False
    # The blocks of the sum itself take room beside the table.
    return size_of(op.reads[0]) < SCOPED_VMEM_BYTES.value
