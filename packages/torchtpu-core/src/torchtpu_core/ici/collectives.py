# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of the times of collectives on a torus, and the link they are stated for.

Each function is a lower bound made of two parts that are added: a bandwidth part, from
the bytes that must pass the narrowest place, and a latency part, from the hops the
last byte makes. For a ring, a line and an even torus the bandwidth part is what a
good schedule reaches. Not modelled: the time to start a collective, contention with
other traffic, and schedules that use fewer links than there are (a 4x4x8 torus).

Legend: ``V`` bytes of the whole array (gathered, or before scattering), ``P`` chips,
``N`` length of an axis, ``W1`` bytes/s of a link in one direction, ``a`` seconds per
hop, ``L`` links of the chip that has fewest (2 on a ring, 1 on a line, 6 on a wrapped
3D torus), ``D`` diameter in hops.

Reference: Austin et al., How to Scale Your Model (2025), chapter 3, gives the ring
forms; Chan et al., Collective communication (2007), the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.ici.torus import Torus

ACHIEVABLE_FRACTION = Sourced(
    0.90,
    "scaling book: 45 and 90 GB/s where the data sheets have 50 and 100; a published "
    "all-gather on tpu7x 2x2x1 runs at 89.4 of 100 GB/s per link",
    Status.MEASURED,
)
HOP_LATENCY_S = Sourced(
    1e-6,
    "scaling book: about 1 us; ASTRA-sim's TPU validation has the same from Google",
    Status.ASSUMED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IciLink:
    """What one direction of one link does.

    Attributes:
        bytes_per_s: rate that long transfers reach.
        hop_latency_s: time of the first byte from chip to chip.
    """

    bytes_per_s: float
    hop_latency_s: float

    @classmethod
    def of(cls, chip: Chip) -> IciLink:
        """The links of a generation, at the rate that is reached in practice."""
        nominal = chip.figure("ici_bytes_per_s_per_link")
        return cls(
            bytes_per_s=nominal * ACHIEVABLE_FRACTION.value,
            hop_latency_s=HOP_LATENCY_S.value,
        )


def all_gather_s(gathered_bytes: float, torus: Torus, link: IciLink) -> float:
    """Seconds until every chip has the whole array of `gathered_bytes`.

    ``V (1 - 1/P) / (L W1) + a D``: the chip with the fewest links takes in all but its
    own shard. A ring: ``V (N-1)/N / (2 W1) + a N/2``; a line: ``V (N-1)/N / W1 + a (N-1)``.
    """
    if torus.chips == 1:
        return 0.0
    others = gathered_bytes * (1 - 1 / torus.chips)
    return others / (torus.fewest_links * link.bytes_per_s) + _latency_s(torus, link)


def reduce_scatter_s(scattered_bytes: float, torus: Torus, link: IciLink) -> float:
    """Seconds until every chip has its shard of the sum; `scattered_bytes` before.

    The same as `all_gather_s`: the messages of an all-gather, run backwards.
    """
    return all_gather_s(scattered_bytes, torus, link)


def all_reduce_s(array_bytes: float, torus: Torus, link: IciLink) -> float:
    """Seconds until every chip has the whole sum of arrays of `array_bytes`.

    ``2 (V (1 - 1/P) / (L W1) + a D)``: a reduce-scatter and an all-gather, which is
    optimal in bandwidth. A small array could be sent whole and pay ``a D`` once.
    """
    return 2 * all_gather_s(array_bytes, torus, link)


def all_to_all_s(total_bytes: float, torus: Torus, link: IciLink) -> float:
    """Seconds until every chip has sent every other its part.

    `total_bytes` is V, the arrays of all chips together; a chip sends ``V / P**2`` to
    each. The larger of two bounds, plus ``a D``: a chip sends ``V/P (1 - 1/P)`` on L
    links; half of each half's bytes cross the middle of an axis,
    ``V f (1-f) / (links W1)`` with ``f = floor(N/2) / N``. An even ring: ``V / (8 W1)``,
    which the book writes ``V / (4 W)`` with both directions in W.
    """
    if torus.chips == 1:
        return 0.0
    sent = total_bytes / torus.chips * (1 - 1 / torus.chips) / torus.fewest_links
    crossing = max(
        _crossing_bytes(total_bytes, torus.shape[axis]) / torus.cut_links(axis)
        for axis in torus.axes
    )
    return max(sent, crossing) / link.bytes_per_s + _latency_s(torus, link)


def permute_s(chip_bytes: float, hops: int, link: IciLink) -> float:
    """Seconds of a shift: every chip sends `chip_bytes` to the chip `hops` away.

    ``hops (V/P / W1 + a)``: every chip sends the same way, so a link carries the
    messages of ``hops`` chips. Sending a part the other way round is not modelled.
    """
    return hops * (chip_bytes / link.bytes_per_s + link.hop_latency_s)


def broadcast_s(array_bytes: float, torus: Torus, link: IciLink) -> float:
    """Seconds until every chip has the array of one of them, sent in a pipeline.

    ``V / (L W1) + a D``: the chip with the fewest links takes in the whole array.
    """
    if torus.chips == 1:
        return 0.0
    return array_bytes / (torus.fewest_links * link.bytes_per_s) + _latency_s(torus, link)


def _latency_s(torus: Torus, link: IciLink) -> float:
    """``a D``, the first byte's way to the farthest chip."""
    return torus.diameter * link.hop_latency_s


def _crossing_bytes(total_bytes: float, length: int) -> float:
    """Bytes of an all-to-all that cross the middle of an axis in one direction."""
    fraction = (length // 2) / length
    return total_bytes * fraction * (1 - fraction)
