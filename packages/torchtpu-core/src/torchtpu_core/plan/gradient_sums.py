# SPDX-License-Identifier: Apache-2.0
"""Which collectives of a step sum gradients over ranks with different data.

Tensor parallelism sums in the backward pass as well, what products of that pass then read;
gradients of parameters go to the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.plan.records import Op, Phase, Work

_NAMES = ("_reduce_scatter_base_", "allreduce_", "allreduce_coalesced_")
#: Smaller sums are of losses and norms.
_SMALLEST_BYTES = 1024


def gradient_sums(ops: Sequence[Op]) -> list[Op]:
    """The collectives that sum gradients, in the order of the step."""
    backward = [i for i, op in enumerate(ops) if op.phase is Phase.BACKWARD]
    after = backward[-1] if backward else len(ops)
    found: list[Op] = []
    read_by_products: set[int] = set()
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        if (
            op.work is Work.COLLECTIVE
            and (op.phase is Phase.BACKWARD or index > after)
            and op.name in _NAMES
            and op.moved_bytes > _SMALLEST_BYTES
            and read_by_products.isdisjoint(op.reads)
        ):
            found.append(op)
        product = op.work in (Work.MATMUL, Work.ATTENTION)
        if op.phase is Phase.BACKWARD and (product or not read_by_products.isdisjoint(op.writes)):
            read_by_products.update(op.reads)
    return found[::-1]
