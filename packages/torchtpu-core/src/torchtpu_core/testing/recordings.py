# SPDX-License-Identifier: Apache-2.0
"""Small recordings of a plan, made by hand for tests."""

from __future__ import annotations

from torchtpu_core.plan.records import Block, Op, Phase, Recording, Work

MIB = 2**20


def op(
    name: str,
    work: Work,
    reads: tuple[int, ...] = (),
    writes: tuple[int, ...] = (),
    phase: Phase = Phase.FORWARD,
    size: int = MIB,
    **more: object,
) -> Op:
    """An operator whose operands and results are all of one size."""
    made = Op(name, work, phase, f"script.py:{len(name)}")
    made.reads, made.writes = reads, writes
    made.read_bytes, made.write_bytes = (size,) * len(reads), (size,) * len(writes)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def recording(ops: list[Op], died: dict[int, int], size: int = MIB) -> Recording:
    """A recording of one step, with blocks born where they are first written."""
    made = Recording(ops=ops, step_ends=[len(ops)])
    for index, item in enumerate(ops):
        for storage in item.writes:
            if storage not in made.blocks:
                block = Block(size, index, item.phase, item.line, died=died.get(storage))
                made.blocks[storage] = block
    return made
