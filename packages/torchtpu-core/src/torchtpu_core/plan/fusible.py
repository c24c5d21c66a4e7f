# SPDX-License-Identifier: Apache-2.0
"""What kind of work an operator is to a compiler that fuses operators."""

from __future__ import annotations

from torchtpu_core.plan.records import Op, Work

#: Moves that are elementwise work for a compiler.
COPIES = frozenset({"_to_copy", "clone", "copy_", "cat", "stack"})
#: Elementwise work of some twenty instructions an element, which a norm's passes do not repeat.
COSTLY = frozenset({"gelu"})
#: Operands smaller than this part of a result are read at no price.
SMALL = 1 / 4


def shrinks(op: Op) -> bool:
    """Whether an operator's results are much smaller than an operand."""
    return SMALL * max(op.read_bytes, default=0) > sum(op.write_bytes)


def reduces(op: Op) -> bool:
    """Whether an operator needs whole rows before it has a result."""
    return shrinks(op) or "norm" in op.name or "softmax" in op.name


def is_elementwise(op: Op) -> bool:
    """Whether a compiler can fuse an operator into others."""
    return op.work is Work.ELEMENTWISE or op.name in COPIES


def takes_fused(op: Op) -> bool:
    """Whether XLA computes operands within an operator: a product, but not in a loop."""
    return op.work is Work.MATMUL and not op.name.startswith("recurrent_layer")


def passes(op: Op) -> int:
    """How often an operator goes over its operands: norms do for their sums, and to apply them.

    One that only measures them (``linalg.vector_norm``) does once.
    """
    return 2 if "norm" in op.name and op.work is Work.ELEMENTWISE and not shrinks(op) else 1
