# SPDX-License-Identifier: Apache-2.0
"""Rows that are gathered, and sums by index, as XLA's TPU compiler makes them.

Both work on whole rows in the order of the program: features along the 128 lanes, padded to them,
whereas other operators keep arrays of few features with another dimension along the lanes. A
gather from a table that fits the VMEM of one operation is computed within the sum that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchtpu_core.plan.op_work import GATHERS
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.simulator.calibration import SCOPED_VMEM_BYTES
from torchtpu_core.simulator.rates import LANES
from torchtpu_core.units import ceil_div

#: Norms over the last dimension.
FEATURE_NORMS = frozenset(("native_layer_norm", "_fused_rms_norm"))
_SUMS = frozenset(
    [
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


def row_sizes(ops: Sequence[Op], blocks: dict[int, Block]) -> dict[int, int]:
    """Bytes of the rows that are gathered or added, by storage, padded to whole lanes.

    So are those of products and of norms over features, unless they are narrow.
    """
    sizes = {}
    for op in ops:
        rows = op.writes if is_gather(op) or _has_wide_rows(op, blocks) else ()
        rows = op.reads if is_sum(op) else rows
        for storage in rows:
            block = blocks.get(storage)
            if block is not None and block.category is None:
                sizes[storage] = round(block.size_bytes * padding(block.shape))
    return sizes


def _has_wide_rows(op: Op, blocks: dict[int, Block]) -> bool:
    product = op.work is Work.MATMUL and not op.name.startswith("convolution")
    if not op.writes or not (product or op.name in FEATURE_NORMS):
        return False
    shape = blocks[op.writes[0]].shape
    return len(shape) > 1 and shape[-1] > LANES // 2


def padding(shape: Sequence[int]) -> float:
    """Padded over plain elements of rows ``[N, ..., D]``.

    >>> padding((65536, 4, 64)), padding((65536, 4, 1)), padding((65536,))
    (2.0, 32.0, 1.0)
    """
    whole = [size for size in shape if size > 1]
    if len(whole) < 2 or not math.prod(whole):
        return 1.0
    return ceil_div(whole[-1], LANES) * LANES / whole[-1]
