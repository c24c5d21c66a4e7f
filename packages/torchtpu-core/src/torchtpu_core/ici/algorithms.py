# SPDX-License-Identifier: Apache-2.0
"""Which algorithm XLA:TPU runs a collective with, by size and shape.

The rules were read from the `collective_algorithm_config` of programs that libtpu
0.0.42.1 compiled ahead of time (all-reduce at powers of two from 1 KiB, v5e, v5p and v6e
topologies). Sizes between the probed powers, and shapes that were not probed, follow the
nearest probed one; that is an assumption. A *colour* is a part of the array that takes the
axes in an order of its own, so that colours use different links at the same time; it goes
both ways round each ring, or one way only (unidirectional).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.ici.kinds import CollectiveKind, Engine
from torchtpu_core.ici.span import Span
from torchtpu_core.units import KIB, MIB

SINGLE_PHASE_BELOW_BYTES = 16 * KIB
LARGE_RING_OF_FOUR_BYTES = 1 * MIB
LARGE_BYTES = 4 * MIB
# UniDirectionNDRing was seen on 4x4, 4x4x4 and 8x8x8, StrategyND on 16x16.
LONGEST_UNIDIRECTIONAL = 8
# The compiler's all-to-all sends pieces of 16 to 32 KiB; broadcasts are assumed to.
PIECE_BYTES = 32 * KIB
MOST_PIECES = 64

_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_RING_KINDS = (*_REDUCING, CollectiveKind.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """How a collective is carried out.

    Attributes:
        emitter: XLA:TPU's name of the code that runs it, or ours where it has none.
        strategy: XLA:TPU's name of the order of rings, empty if there is none.
        colours: parts of the array that use different links at the same time.
        unidirectional: whether a colour goes one way round each ring only.
        single_phase: whether whole arrays go round and every chip adds all of them.
        pipelined: whether pieces follow each other from the root past every chip.
        engine: the unit that drives it.
    """

    emitter: str
    strategy: str = ""
    colours: int = 1
    unidirectional: bool = False
    single_phase: bool = False
    pipelined: bool = False
    engine: Engine = Engine.TENSOR_CORE

    @property
    def name(self) -> str:
        """The name as reports show it, such as ``RotatedPincer StrategyND colors:2``."""
        parts = [self.emitter, self.strategy, f"colors:{self.colours}" if self.strategy else ""]
        return " ".join(part for part in parts if part)


def choose(
    kind: CollectiveKind,
    array_bytes: float,
    span: Span,
    chip: Chip,
    offload: bool | None = None,
) -> Algorithm:
    """The algorithm for a collective.

    Args:
        kind: the collective.
        array_bytes: bytes of the whole array.
        span: what each group spans within a slice.
        chip: the generation.
        offload: whether SparseCores drive it; None for the compiler's default.
    """
    if kind is CollectiveKind.BROADCAST and len(span.axes) > 1:
        # A sum in which all but the root put in zeros.
        rings = choose(CollectiveKind.ALL_REDUCE, array_bytes, span, chip, offload)
        return replace(rings, emitter=f"Masked {rings.emitter}")
    if kind not in _RING_KINDS or not span.axes:
        return _direct(kind, span)
    if _offloaded(chip, offload):
        return _on_sparse_cores(span)
    if kind is CollectiveKind.ALL_REDUCE:
        return _all_reduce(array_bytes, span)
    axes = len(span.axes)
    if kind is CollectiveKind.REDUCE_SCATTER:
        emitter = "SingleInputAllReduceScatterFusion"
    else:
        emitter = {1: "1DAllGather", 2: "2DAllGatherOnMajorDim"}.get(axes, "RotatedPincer")
    return Algorithm(emitter=emitter, strategy=_strategy(span), colours=axes)


def pipeline_pieces(size_bytes: float) -> int:
    """Pieces in which a pipelined broadcast sends its bytes."""
    return max(1, min(MOST_PIECES, math.ceil(size_bytes / PIECE_BYTES)))


def _all_reduce(array_bytes: float, span: Span) -> Algorithm:
    lengths, axes = [axis.length for axis in span.axes], len(span.axes)
    wrapped = all(axis.wrap for axis in span.axes)
    if axes == 1:
        if array_bytes < SINGLE_PHASE_BELOW_BYTES:
            return Algorithm(emitter="SinglePhaseRingSumEmitter", single_phase=True)
        if wrapped and lengths == [4] and array_bytes >= LARGE_RING_OF_FOUR_BYTES:
            return Algorithm(
                emitter="RotatedPincer",
                strategy="UniDirection1DRing",
                colours=2,
                unidirectional=True,
            )
    large = array_bytes >= LARGE_BYTES
    emitter = "RotatedPincer" if large else "RotatedPincerShort"
    alike = len(set(lengths)) == 1 and max(lengths) <= LONGEST_UNIDIRECTIONAL
    if axes > 1 and large and wrapped and (alike or span.twisted):
        return Algorithm(
            emitter=emitter, strategy="UniDirectionNDRing", colours=2 * axes, unidirectional=True
        )
    # 4x4x8 was seen with two colours when small.
    two = axes > 2 and not large and len(set(lengths)) > 1 and not span.twisted
    return Algorithm(emitter=emitter, strategy=_strategy(span), colours=2 if two else axes)


def _strategy(span: Span) -> str:
    if span.twisted:
        return "TwistedTorusND"
    return "StrategyRing" if len(span.axes) == 1 else "StrategyND"


def _on_sparse_cores(span: Span) -> Algorithm:
    """Rings that the offload's configuration spells out: one way each, both ways in use."""
    wrapped = all(axis.wrap for axis in span.axes)
    return Algorithm(
        emitter="SparseCoreOffload",
        strategy="UnidirectionalRings" if wrapped else _strategy(span),
        colours=len(span.axes) * (2 if wrapped else 1),
        unidirectional=wrapped,
        engine=Engine.SPARSE_CORE,
    )


def _offloaded(chip: Chip, offload: bool | None) -> bool:
    if not chip.sparse_cores_per_chip:
        return False
    return chip.offloads_collectives if offload is None else offload


def _direct(kind: CollectiveKind, span: Span) -> Algorithm:
    if kind is CollectiveKind.ALL_TO_ALL:
        routed = len(span.axes) == 2 and span.chips_per_slice >= 32  # seen on 4x8 and 16x16
        return Algorithm(emitter="NetRouterEmitter" if routed else "AllToAllEmitter")
    if kind is CollectiveKind.BROADCAST and span.axes:
        return Algorithm(emitter="PipelinedRing", pipelined=True)
    names = {
        CollectiveKind.RAGGED_ALL_TO_ALL: "RaggedAllToAll",
        CollectiveKind.PERMUTE: "CollectivePermute",
        CollectiveKind.SEND: "Send",
    }
    return Algorithm(emitter=names.get(kind, "WithinChip"))
