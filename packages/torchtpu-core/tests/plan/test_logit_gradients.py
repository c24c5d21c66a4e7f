# SPDX-License-Identifier: Apache-2.0
"""Gradients of logits that the gradient of a bias sums; figures are those of libtpu's buffers."""

from __future__ import annotations

import pytest
from torchtpu_core.plan.lifetimes import lifetimes_of
from torchtpu_core.plan.records import Op, Phase, Work
from torchtpu_core.plan.vmem import Vmem
from torchtpu_core.testing.recordings import op, recording

BACK = Phase.BACKWARD
LOGITS, LABELS, WEIGHT, ROWS = 1, 2, 3, 4  # from before the step, but for labels that it draws
COUNT, TOKENS, EMBEDDED, ONE = 0, 5, 6, 7
LOSS, COPY, GRADIENT, ROUNDED, SUMS = 8, 9, 10, 11, 20


def _made_labels(labels: str) -> list[Op]:
    if labels == "operand":
        return []
    if labels == "from the host":
        return [op("_to_copy", Work.MOVE, (), (LABELS,))]
    made = LABELS if labels.startswith("drawn") else TOKENS
    ops = [op("randint", Work.ELEMENTWISE, (), (made,))]
    if labels == "masked":  # other than drawn ones, these may be -100
        ops.append(op("where", Work.ELEMENTWISE, (made,), (LABELS,)))
    if labels == "drawn and read":
        ops.append(op("embedding", Work.ELEMENTWISE, (WEIGHT, LABELS), (EMBEDDED,)))
    return ops


@pytest.mark.parametrize(
    ("classes", "dtype", "bias", "labels", "written"),
    [
        (8192, "bf16", True, "operand", True),  # bf16[6144,8192], beside bf16[8192]
        (8192, "bf16", False, "operand", False),
        (30522, "bf16", True, "operand", False),  # bf16[6144,30522]{0,1}: sums are along the lanes
        (8192, "f32", True, "operand", False),
        (8192, "bf16", True, "drawn", False),
        (8192, "bf16", True, "drawn and read", False),
        (8192, "bf16", True, "masked", True),
        (8192, "bf16", True, "from the host", True),
    ],
)
def test_gradient_of_logits_is_written_beside_the_sums_of_16_bits(
    classes, dtype, bias, labels, written
) -> None:
    products = ((1, 6144, classes, 768),), ((1, classes, 6144, 768),)
    ops = [
        *_made_labels(labels),
        op("ones_like", Work.ELEMENTWISE, (), (ONE,)),
        op("nll_loss_backward", Work.ELEMENTWISE, (ONE, LOGITS, LABELS, COUNT), (LOSS,), BACK),
        op("_to_copy", Work.MOVE, (LOSS,), (COPY,), BACK),
        op("_log_softmax_backward_data", Work.ELEMENTWISE, (COPY, LOGITS), (GRADIENT,), BACK),
        op("_to_copy", Work.MOVE, (GRADIENT,), (ROUNDED,), BACK),
        op("mm", Work.MATMUL, (ROUNDED, WEIGHT), (12,), BACK, products=products[0], dtype=dtype),
        op("mm", Work.MATMUL, (ROUNDED, ROWS), (13,), BACK, products=products[1], dtype=dtype),
    ]
    if bias:
        ops.append(op("sum", Work.ELEMENTWISE, (ROUNDED,), (SUMS,), BACK))
    made = recording(ops, dict.fromkeys((LOSS, COPY, GRADIENT, ROUNDED), len(ops)))
    made.blocks[GRADIENT].shape, made.blocks[ROUNDED].shape = (6144, classes), (48, 128, classes)
    if bias:
        made.blocks[SUMS].shape = (1, classes)
    if LABELS in made.blocks:
        made.blocks[LABELS].size_bytes = 8 * 6144  # far less than the logits
    found = {one.storage for one in lifetimes_of(made.ops, made.blocks, 0, Vmem(0)).lives}
    assert (ROUNDED in found) == written
    assert GRADIENT not in found
