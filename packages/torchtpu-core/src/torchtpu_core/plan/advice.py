# SPDX-License-Identifier: Apache-2.0
"""What would make a step faster, each change measured by pricing the changed step.

A rule looks for one thing and makes a list of operators as they would be after the
change; the gain is the difference of the two simulated steps. Rules that find nothing,
or gain less than a thousandth, are silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchtpu_core.plan import embedding_advice, host_advice, op_work
from torchtpu_core.plan.attention_heads import heads_of_products
from torchtpu_core.plan.changed_step import Found, Step
from torchtpu_core.plan.fusion import Fusion
from torchtpu_core.plan.gradient_sums import gradient_sums
from torchtpu_core.plan.memory import Memory
from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.records import Category, Op, Parts, Phase, Recording, Work
from torchtpu_core.plan.schedule import Pricer
from torchtpu_core.units import format_bytes

SMALLEST_GAIN = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change.

    Attributes:
        title: what to do.
        why: what was found.
        lines: the user's lines it concerns, most important first.
        gain_s: simulated seconds of a step it saves.
        part: the same over the step.
    """

    title: str
    why: str
    lines: tuple[str, ...]
    gain_s: float
    part: float

    @property
    def share(self) -> str:
        """`part` as text: percent of the step, or how many steps a compilation takes."""
        return f"{self.part:.1%}" if self.part <= 1 else f"the time of {self.part:,.0f} steps"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "title": self.title,
            "why": self.why,
            "lines": list(self.lines),
            "simulated_gain_s": self.gain_s,
            "simulated_gain": self.part,
        }


def advise(
    ops: Sequence[Op],
    fusion: Fusion,
    pricer: Pricer,
    placed: Schedule,
    memory: Memory,
    recording: Recording,
) -> list[Advice]:
    """Changes that pay, largest simulated gain first."""
    step = Step(ops, fusion, pricer, placed, memory, recording)
    found = []
    for rule in RULES:
        for title, why, lines, seconds in rule(step):
            gain = placed.step_s - seconds
            if placed.step_s and gain / placed.step_s >= SMALLEST_GAIN:
                found.append(
                    Advice(
                        title=title,
                        why=why,
                        lines=lines,
                        gain_s=gain,
                        part=gain / placed.step_s,
                    )
                )
    return sorted(found, key=lambda item: -item.gain_s)


def _float64(step: Step) -> Iterator[Found]:
    """The matrix unit has no float64: XLA makes a product of several float32 ones."""
    yield from _narrower(step, "f64", "f32", "Multiply matrices in float32", "float64", "")


def _float32(step: Step) -> Iterator[Found]:
    """Products in float32 take several passes of the matrix unit."""
    how = "; use torch.autocast('tpu', torch.bfloat16) or FSDP's MixedPrecisionPolicy"
    yield from _narrower(step, "f32", "bf16", "Multiply matrices in bfloat16", "float32", how)


def _narrower(
    step: Step, dtype: str, other: str, title: str, name: str, how: str
) -> Iterator[Found]:
    """Products of one element type in another, of half its bytes."""
    wide = [i for i, op in enumerate(step.ops) if op.products and op.dtype == dtype]
    if not wide:
        return
    chosen = set(wide)
    ops = [replace(op, dtype=other) if i in chosen else op for i, op in enumerate(step.ops)]
    moved = [size / 2 if i in chosen else size for i, size in enumerate(step.fusion.moved_bytes)]
    why = f"{_counted(wide)} {name} operands{how}"
    yield title, why, step.lines(wide), step.seconds_of(ops, moved)


def _counted(products: Sequence[int]) -> str:
    return "1 product has" if len(products) == 1 else f"{len(products)} products have"


def _head_width(step: Step) -> Iterator[Found]:
    """Heads narrower than the matrix unit leave a part of it idle."""
    side = step.pricer.rates.mxu_side
    written_out = heads_of_products(step.ops)
    ops, narrow, widths = list(step.ops), [], []
    moved = list(step.fusion.moved_bytes)
    for i, op in enumerate(step.ops):
        width = op.head_dims[0] if op.work is Work.ATTENTION else written_out.get(i, 0)
        if not 0 < width < side:
            continue
        narrow.append(i)
        widths.append(width)
        if op.work is Work.ATTENTION:  # fewer statistics, scores and lanes that hold nothing
            moved[i] = max(moved[i] * width / side, sum(op.read_bytes) + sum(op.write_bytes))
        ops[i] = replace(
            op,
            scores=op.scores * width / side,
            head_dims=(side, side) if op.work is Work.ATTENTION else op.head_dims,
            products=tuple(_wider(row, width, side) for row in op.products),
        )
    if not narrow:
        return
    yield (
        f"Use heads of {side} instead of {widths[0]}",
        f"the matrix unit is {side} wide: a head of {widths[0]} fills {widths[0] / side:.0%} of "
        "it; fewer, wider heads of the same total width cost less",
        step.lines(narrow),
        step.seconds_of(ops, moved),
    )


def _wider(row: tuple[int, int, int, int], width: int, side: int) -> tuple[int, int, int, int]:
    """A product of all heads, were they `side` wide and as many fewer."""
    batch, *dims = row
    m, k, n = (side if dim == width else dim for dim in dims)
    return max(1, batch * width // side), m, k, n


def _off_tile(step: Step) -> Iterator[Found]:
    """Dimensions that do not fill whole tiles."""
    side = step.pricer.rates.mxu_side
    ops, off = list(step.ops), []
    useful = padded = 0.0
    for i, op in enumerate(step.ops):
        rows = () if op.name in op_work.TRANSFORMS else op.products
        wasted = [row for row in rows if _is_padded(op, row, step.pricer)]
        for batch, m, k, n in wasted:
            useful += batch * 2.0 * m * k * n
            padded += batch * step.pricer.rates.padded_flops(m, k, n)
        if wasted:
            off.append(i)
            ops[i] = replace(op, products=tuple(_whole(row, side) for row in op.products))
    if not off:
        return
    yield (
        f"Make dimensions multiples of {side}",
        f"{_counted(off)} dimensions off the matrix unit's tile; "
        f"{1 - useful / padded:.0%} of the work is padding",
        step.lines(off),
        step.seconds_of(ops),
    )


def _is_padded(op: Op, row: tuple[int, int, int, int], pricer: Pricer) -> bool:
    """Whether the matrix unit does a product that leaves a part of its tiles empty."""
    _, m, k, n = row
    padding = pricer.rates.padded_flops(m, k, n) / (2.0 * m * k * n)
    return padding > 1.02 and pricer.product(op, m, k, n)[1]


def _whole(row: tuple[int, int, int, int], side: int) -> tuple[int, int, int, int]:
    """Dimensions rounded down to whole tiles, at least one."""
    batch, m, k, n = row
    return batch, m, max(side, k // side * side), max(side, n // side * side)


def _recompute(step: Step) -> Iterator[Found]:
    """What the backward pass computes again."""
    again = [
        i
        for i, op in enumerate(step.ops)
        if op.phase is Phase.RECOMPUTE and op.work is not Work.COLLECTIVE
    ]
    if not again:
        return
    kept = _kept_at_once(step, again)
    room = step.memory.limit_bytes - step.memory.peak_bytes
    chosen = set(again)
    ops = [
        replace(op, products=(), scores=0.0, work=Work.ELEMENTWISE) if i in chosen else op
        for i, op in enumerate(step.ops)
    ]
    moved = [0.0 if i in chosen else size for i, size in enumerate(step.fusion.moved_bytes)]
    fits = (
        "there is room for all of it"
        if kept <= room
        else (
            f"there is room for {max(0, room) / kept:.0%} of it, so the gain is at most that part"
        )
    )
    yield (
        "Keep more activations instead of computing them again",
        f"{format_bytes(int(kept))} would be kept and {format_bytes(max(0, room))} are free: "
        f"{fits}",
        step.lines(again),
        step.placed.step_s
        - (step.placed.step_s - step.seconds_of(ops, moved))
        * min(1.0, max(0, room) / max(kept, 1)),
    )


def _kept_at_once(step: Step, again: Sequence[int]) -> int:
    """Bytes that stay until a backward pass, if nothing is computed again: of one microbatch.

    A microbatch's begin to go before the next one's forward pass with gradients. Weights that
    are gathered again are not kept.
    """
    ops, fusion, blocks = step.ops, step.fusion, step.recording.blocks
    most = now = last = 0
    for i in again:
        if any(op.phase is Phase.FORWARD and op.products for op in ops[last:i]):
            now = 0
        if ops[i].work is not Work.ELEMENTWISE:
            for storage, size in zip(ops[i].writes, ops[i].write_bytes, strict=True):
                block = blocks.get(storage)
                gathered = block is not None and block.category is Category.GATHERED
                unseen = storage in fusion.inside or (i, storage) in fusion.elided
                now += 0 if gathered or unseen else size
        most, last = max(most, now), i
    return most


def _communication(step: Step) -> Iterator[Found]:
    """Each axis of communication, if it cost nothing: a bound for better sharding."""
    kinds: Counter[tuple[str, int]] = Counter()
    for item in step.placed.placed:
        if item.op.work is Work.COLLECTIVE:
            kinds[item.op.collective, len(item.op.group)] += 1
    for (kind, ranks), runs in kinds.most_common(3):
        chosen = [
            i for i, op in enumerate(step.ops) if op.collective == kind and len(op.group) == ranks
        ]
        without = set(chosen)
        ops = [replace(op, group=()) if i in without else op for i, op in enumerate(step.ops)]
        half = (step.placed.step_s + step.seconds_of(ops)) / 2
        yield (
            f"Halve the {kind} traffic of {ranks} ranks",
            f"{runs} of them a step, hidden in part at most; larger batches per rank, a smaller "
            "axis or eight-bit communication send less",
            step.lines(chosen),
            half,
        )


def _optimizer(step: Step) -> Iterator[Found]:
    """State that every replica holds and updates: that of gradients which are summed whole."""
    sums = gradient_sums(step.ops)
    if any(op.collective == "reduce_scatter" for op in step.ops) or not sums:
        return
    gradients = max(step.memory.curves[Category.GRADIENTS])
    part = min(1.0, sum(op.moved_bytes for op in sums) / max(gradients, 1))
    state = int(part * step.memory.at_peak.get(Category.OPTIMIZER, 0))
    if not state:
        return
    ranks = max(len(op.group) for op in sums)
    chosen = [i for i, op in enumerate(step.ops) if op.phase is Phase.OPTIMIZER]
    moved = [
        size * (1 - part * (1 - 1 / ranks)) if step.ops[i].phase is Phase.OPTIMIZER else size
        for i, size in enumerate(step.fusion.moved_bytes)
    ]
    yield (
        "Shard the optimizer's state",
        f"each of {ranks} ranks holds and updates all {format_bytes(state)} of it; use FSDP2 "
        "(fully_shard) or ZeroRedundancyOptimizer",
        step.lines(chosen),
        step.seconds_of(step.ops, moved),
    )


_WEIGHTS = (Category.PARAMETERS, Category.GATHERED, Category.GRADIENTS, Category.OPTIMIZER)
#: Collectives of sharded weights and of their gradients.
_SHARDED = ("_allgather", "_reduce_scatter")


def _of_weights(step: Step) -> set[int]:
    """What a larger batch does not change: clipping, updates, copies and casts of weights."""
    blocks = step.recording.blocks
    known = {storage for storage, block in blocks.items() if block.category in _WEIGHTS}
    for op in step.ops:
        if op.name.startswith(_SHARDED):
            known.update(op.reads)
    found = set()
    for i, op in enumerate(step.ops):
        alone = not op.products and not op.scores and not op.collective
        copied = alone and any(
            storages and known.issuperset(storages) for storages in (op.reads, op.writes)
        )
        if copied or op.phase in (Phase.GRADIENTS, Phase.OPTIMIZER) or op.name.startswith(_SHARDED):
            found.add(i)
    return found


def _larger_batch(step: Step) -> Iterator[Found]:
    """Twice the batch: weights, their communication and the update are shared by more tokens."""
    if not any(op.phase is Phase.BACKWARD for op in step.ops):
        return
    grown = sum(step.memory.at_peak.get(category, 0) for category in Category.varying())
    room = step.memory.limit_bytes - step.memory.peak_bytes
    if grown > room:
        return
    same = _of_weights(step)
    ops, moved = [], []
    for i, (op, size) in enumerate(zip(step.ops, step.fusion.moved_bytes, strict=True)):
        doubled, bytes_ = (op, size) if i in same else _doubled(op, size)
        ops.append(doubled)
        moved.append(bytes_)
    within = [size if i in same else 2 * size for i, size in enumerate(step.fusion.vmem_bytes)]
    yield (
        "Double the batch of each rank",
        f"HBM has room: {format_bytes(grown)} more of {format_bytes(room)} free; the gain is for "
        "the same work",
        (),
        step.seconds_of(ops, moved, within) / 2,
    )


def _doubled(op: Op, moved_bytes: float) -> tuple[Op, float]:
    """An operator with twice the tokens, and its bytes."""
    if op.products:
        weights = 2 * min(k * n for _, _, k, n in op.products)
        # A weight's gradient sums over twice the tokens; its work doubles as well.
        rows = tuple((batch, 2 * m, k, n) for batch, m, k, n in op.products)
        return replace(op, products=rows), moved_bytes + max(0.0, moved_bytes - weights)
    if op.collective:
        tokens = op.name not in ("allreduce_", "allreduce_coalesced_")
        parts = op.parts and Parts(2 * op.parts.sizes)
        return replace(op, moved_bytes=op.moved_bytes * (1 + tokens), parts=parts), moved_bytes
    return replace(op, scores=2 * op.scores, drawn=2 * op.drawn), 2 * moved_bytes


def _off_the_axes(step: Step) -> Iterator[Found]:
    """Groups of ranks that are no part of the torus, priced as if they were."""
    off = [
        i
        for i, op in enumerate(step.ops)
        if op.work is Work.COLLECTIVE and step.pricer.is_irregular(op)
    ]
    if not off:
        return
    chosen = set(off)
    ops = [
        replace(op, group=tuple(range(len(op.group)))) if i in chosen else op
        for i, op in enumerate(step.ops)
    ]
    yield (
        "Lay the mesh along the torus",
        f"{len(off)} collectives run over ranks that form no grid of the slice; order the mesh "
        "so that its innermost axis is a torus axis",
        step.lines(off),
        step.seconds_of(ops),
    )


RULES: tuple[Callable[[Step], Iterator[Found]], ...] = (
    _float64,
    _float32,
    _head_width,
    _off_tile,
    _recompute,
    _communication,
    *host_advice.RULES,
    *embedding_advice.RULES,
    _optimizer,
    _larger_batch,
    _off_the_axes,
)
