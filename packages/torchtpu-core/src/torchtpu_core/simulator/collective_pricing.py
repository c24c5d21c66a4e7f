# SPDX-License-Identifier: Apache-2.0
"""Prices the collectives of a program with the closed forms of `ici.collectives`.

Turns what a program says (bytes per device, groups of device numbers) into what a
closed form needs (bytes of the whole array, the torus the group spans). Groups that
use the same links at the same time are not modelled, except those of the devices of
one chip, which share its links evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.ici import collectives as ici
from torchtpu_core.ici.groups import Span, line, span_of
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.torus import Torus
from torchtpu_core.simulator.cost import Collective, CollectiveKind

_CLOSED_FORMS: dict[CollectiveKind, Callable[[float, Torus, ici.IciLink], float]] = {
    CollectiveKind.ALL_GATHER: ici.all_gather_s,
    CollectiveKind.REDUCE_SCATTER: ici.reduce_scatter_s,
    CollectiveKind.ALL_REDUCE: ici.all_reduce_s,
    CollectiveKind.ALL_TO_ALL: ici.all_to_all_s,
    CollectiveKind.BROADCAST: ici.broadcast_s,
}


def collective_s(collective: Collective, where: Chip | Slice, devices: int) -> float:
    """Seconds of one run of a collective.

    Args:
        collective: what the program says of it.
        where: a slice; a chip alone makes its devices a line of such chips.
        devices: devices of the program, which are the group where none is named.

    Raises:
        UnpublishedFigureError: a group within one chip whose inner rate is not published.
    """
    chip = where.chip if isinstance(where, Slice) else where
    link = ici.IciLink.of(chip)
    if collective.kind is CollectiveKind.PERMUTE:
        return _permute_s(collective, where, link)
    group = collective.groups[0] if collective.groups else tuple(range(devices))
    if len(group) == 1:
        return 0.0
    array_bytes = _array_bytes(collective, len(group))
    closed_form = _CLOSED_FORMS[collective.kind]
    span = _span(group, where)
    if span.torus.chips == 1:
        return closed_form(array_bytes, line(len(group)), _die_link(chip, link))
    return closed_form(array_bytes * span.sharing, span.torus, link)


def _permute_s(collective: Collective, where: Chip | Slice, link: ici.IciLink) -> float:
    """Seconds of a permutation, as a shift by its longest distance."""
    pairs = [pair for pair in collective.groups if pair[0] != pair[1]]
    if not pairs:
        return 0.0
    hops = max(_hops(source, target, where) for source, target in pairs)
    if hops == 0:
        chip = where.chip if isinstance(where, Slice) else where
        return ici.permute_s(collective.operand_bytes, 1, _die_link(chip, link))
    senders = Counter(_chip_of(source, where) for source, _ in pairs)
    return ici.permute_s(collective.operand_bytes * max(senders.values()), hops, link)


def _array_bytes(collective: Collective, group_size: int) -> int:
    """V: the whole array that the closed form of a collective is written in."""
    if collective.kind is CollectiveKind.ALL_GATHER:
        return collective.result_bytes
    if collective.kind is CollectiveKind.ALL_TO_ALL:
        return collective.operand_bytes * group_size
    return collective.operand_bytes


def _span(group: tuple[int, ...], where: Chip | Slice) -> Span:
    if isinstance(where, Slice):
        return span_of(group, where)
    return Span(torus=line(len(group)), devices_per_chip=1, sharing=1)


def _chip_of(device: int, where: Chip | Slice) -> int:
    return where.chip_of(device) if isinstance(where, Slice) else device


def _hops(source: int, target: int, where: Chip | Slice) -> int:
    ends = _chip_of(source, where), _chip_of(target, where)
    return where.torus.hop_distance(*ends) if isinstance(where, Slice) else abs(ends[0] - ends[1])


def _die_link(chip: Chip, link: ici.IciLink) -> ici.IciLink:
    """The connection between the devices of one chip; its latency is not published."""
    ratio = chip.figure("die_to_die_ratio")
    return ici.IciLink(bytes_per_s=ratio * link.bytes_per_s, hop_latency_s=0.0)
