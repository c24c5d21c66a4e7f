# SPDX-License-Identifier: Apache-2.0
"""Advice on embedding tables: who looks rows up, and how many of them a step changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchtpu_core.plan.changed_step import Found, Step, without
from torchtpu_core.plan.records import DENSE_GRADIENTS, Op, Phase
from torchtpu_core.units import format_bytes

_LOOK_UPS = DENSE_GRADIENTS | {
    "embedding",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "index_select",
    "index_add_",
}
#: Part of a table's rows up to which a sparse gradient is advised.
_FEW_ROWS = 0.5


def _sparse_cores(step: Step) -> Iterator[Found]:
    """Rows looked up by the TensorCore, which SparseCores do beside it."""
    count = step.pricer.where.chip.sparse_cores_per_chip
    found = [i for i, op in enumerate(step.ops) if op.name in _LOOK_UPS]
    if not count or not found:
        return
    # They move the same bytes at the same rate of HBM, but the core goes on meanwhile.
    beside = sum(step.pricer.rates.hbm_s(step.fusion.moved_bytes[i]) for i in found)
    yield (
        "Look embeddings up on the SparseCores",
        f"look-ups and their gradients keep the TensorCore for {beside * 1e3:.2f} ms; "
        f"the {count} SparseCores of a chip do them beside it",
        step.lines(found),
        max(without(step, found), beside),
    )


def _sparse_gradients(step: Step) -> Iterator[Found]:
    """Gradients of all rows of a table of which a step looks few up, and the update of all."""
    tables = dict(_dense_tables(step))
    if not tables:
        return
    moved = list(step.fusion.moved_bytes)
    for i, (size, part) in tables.items():
        moved[i] = max(0.0, moved[i] - size * (1 - part))
    known = {step.ops[i].writes[0]: (size, part) for i, (size, part) in tables.items()}
    updates = [i for i, op in enumerate(step.ops) if op.phase is Phase.OPTIMIZER]
    for i in updates:
        moved[i] *= _part_left(step.ops[i], known)
    rows = max(part for _, part in tables.values())
    sizes = sum(size for size, _ in tables.values())
    yield (
        "Give embeddings sparse gradients",
        f"a step looks up at most {rows:.1%} of the rows of {len(tables)} "
        f"table{'' if len(tables) == 1 else 's'}, and sums and applies gradients of all, "
        f"{format_bytes(sizes)}; sparse=True, with an optimizer that takes it (SGD, Adagrad, "
        "SparseAdam), touches only those rows",
        step.lines([*tables, *(i for i in updates if moved[i] < step.fusion.moved_bytes[i])]),
        step.seconds_of(step.ops, moved),
    )


def _dense_tables(step: Step) -> Iterator[tuple[int, tuple[int, float]]]:
    """Operators that make such a gradient for the optimizer alone, its bytes and part of rows."""
    readers: dict[int, list[Op]] = {}
    for op in step.ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op)
    for i, op in enumerate(step.ops):
        if op.name not in DENSE_GRADIENTS or len(op.writes) != 1:
            continue
        block = step.recording.blocks.get(op.writes[0])
        rows = block.shape[0] if block is not None and block.shape else 0
        users = readers.get(op.writes[0], [])
        if (
            op.looked_up <= _FEW_ROWS * rows
            and users
            and all(user.phase is Phase.OPTIMIZER for user in users)
        ):
            yield i, (op.write_bytes[0], op.looked_up / rows)


def _part_left(op: Op, known: dict[int, tuple[int, float]]) -> float:
    """What is left of an update's bytes, if it goes over the rows that were looked up.

    The table and the optimizer's state are the operands as large as the gradient; they are added
    to what is known, for the operators that follow.
    """
    operands = [*zip(op.reads, op.read_bytes, strict=True)]
    operands += zip(op.writes, op.write_bytes, strict=True)
    left = dict(known[storage] for storage, _ in operands if storage in known)
    for storage, size in operands:
        if size in left:
            known[storage] = size, left[size]
    total = sum(size for _, size in operands)
    return sum(size * left.get(size, 1.0) for _, size in operands) / total if total else 1.0


RULES: tuple[Callable[[Step], Iterator[Found]], ...] = (_sparse_cores, _sparse_gradients)
