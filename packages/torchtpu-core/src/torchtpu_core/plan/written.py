# SPDX-License-Identifier: Apache-2.0
"""Results that XLA's TPU compiler writes for those who read them, though it could compute them.

Gathered for `plan.recomputed`, which decides about all others by the bytes that they move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from torchtpu_core.plan.grouped import operands_of_groups
from torchtpu_core.plan.images import kept_beside
from torchtpu_core.plan.logit_gradients import summed_logit_gradients
from torchtpu_core.plan.norms import (
    made_in_rows,
    reordered_norms,
    scaled_by_reductions,
    written_norms,
)
from torchtpu_core.plan.pixel_rows import operands_of_rows
from torchtpu_core.plan.records import Block, Op, Work
from torchtpu_core.plan.softmax_gradients import softmax_gradients
from torchtpu_core.plan.split_batches import operands_of_parts, whole_images

#: Moves of features to pixels and back.
SHUFFLES = frozenset({"pixel_shuffle", "pixel_unshuffle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Storages that are written, and for whom.

    Attributes:
        ends: bytes that are written for ends of products (`plan.broadcasts`).
        normed: what is made of norms and written for products of bfloat16 (`plan.norms`).
        scaled: what is scaled by reductions over its features (`plan.norms`).
        reordered: and for all products, as what is made beside one is (`plan.images`).
        rows: what is made in the shape of rows of products, as these compute norms within them.
        gradients: of softmaxes, and what is made of them (`plan.softmax_gradients`); of logits that
            the gradient of a bias sums (`plan.logit_gradients`).
        convolved: what convolutions of several groups, or of few images, read (`plan.grouped`,
            `plan.split_batches`) or group norms of these, or those of one pixel over wide images
            (`plan.pixel_rows`), what several convolutions do, and what is made of pixels that were
            features.
    """

    ends: Mapping[int, int]
    normed: Container[int]
    scaled: Container[int]
    reordered: Container[int]
    rows: Container[int]
    gradients: Container[int]
    convolved: Container[int]


def written_results(
    ops: Sequence[Op], blocks: dict[int, Block], ends: Mapping[int, int], *, keeps_gelus: bool
) -> Written:
    """Those of a step.

    Args:
        ops: its operators.
        blocks: storages by identifier.
        ends: bytes that are written for ends of products (`plan.broadcasts`).
        keeps_gelus: whether XLA writes GELUs of all products of bfloat16 for the chip.
    """
    return Written(
        ends=ends,
        normed=written_norms(ops, blocks),
        scaled=scaled_by_reductions(ops, blocks),
        reordered=reordered_norms(ops, blocks) | kept_beside(ops, blocks, of_all=keeps_gelus),
        rows=made_in_rows(ops, blocks),
        gradients=softmax_gradients(ops) | summed_logit_gradients(ops, blocks),
        convolved=operands_of_groups(ops, blocks).keys()
        | operands_of_parts(ops, blocks)
        | whole_images(ops, blocks).keys()
        | operands_of_rows(ops, blocks)
        | _shared_images(ops)
        | _shuffled_images(ops),
    )


def _shared_images(ops: Sequence[Op]) -> set[int]:
    """Images that several convolutions of the forward pass read: a block and what goes past it."""
    read = Counter(op.reads[0] for op in ops if op.name == "convolution" and op.reads)
    return {storage for storage, count in read.items() if count > 1}


def _shuffled_images(ops: Sequence[Op]) -> set[int]:
    """Images that a convolution reads of pixels that were features, or the other way round."""
    moved: set[int] = set()
    found: set[int] = set()
    for op in ops:
        if op.name in SHUFFLES or (op.work is Work.ELEMENTWISE and not moved.isdisjoint(op.reads)):
            moved.update(op.writes)
        elif op.name == "convolution":
            found.update(moved.intersection(op.reads[:1]))
    return found
