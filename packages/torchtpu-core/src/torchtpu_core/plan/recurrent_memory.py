# SPDX-License-Identifier: Apache-2.0
"""What loops of recurrent layers read and write beside their operands and results.

The input's part of the gates is one product before the loop (`lowering.recurrent_layers`), and the
loop writes the gradients of the gates for the products after it. XLA's TPU compiler computes those
of the weights after the last loop of the step, and keeps the gradients of all layers until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.plan.records import Op
from torchtpu_core.plan.vmem import Life

_FORWARD, _BACKWARD = "recurrent_layer", "recurrent_layer_backward"
_BYTES = {"bf16": 2, "f16": 2}
#: Of a GRU, in which the state's part of the gates has a gradient of its own.
_GATES_OF_GRU = 3


def is_recurrent(op: Op) -> bool:
    """Whether an operator is a loop over the steps of a sequence, or that of its gradients."""
    return op.name in (_FORWARD, _BACKWARD)


def lives_in_loops(ops: Sequence[Op]) -> list[Life]:
    """Gates of forward passes, and gradients of gates.

    Args:
        ops: the operators of a step.
    """
    end = max((i for i, op in enumerate(ops) if op.name == _BACKWARD), default=-1) + 1
    found = []
    for index, op in enumerate(ops):
        if not is_recurrent(op) or not op.products:
            continue
        (_, rows, *sides), (_, _, *of_state) = op.products[:2]
        forward = op.name == _FORWARD
        gates, hidden = (sides[1], of_state[0]) if forward else (sides[0], of_state[1])
        size = rows * gates * _BYTES.get(op.dtype, 4)
        if forward:
            found.append(Life(op.writes[0], size, (index,), index + 1))
        else:
            parts = 1 + (gates == _GATES_OF_GRU * hidden)
            found += [Life(op.writes[0], size, (index, end - 1), end)] * parts
    return found
