# SPDX-License-Identifier: Apache-2.0
"""All-to-all of uneven parts: who sends how much to whom, as loads of the links of a span.

All groups of a mesh axis exchange the same parts at the same time, position by position, as
they do where one rank stands for all. Parts to other slices go to the chip of the target's
position first, and then over the data centre network, as those of an even all-to-all do. The
ways are its ways too: axis by axis, and half of a part each way to the chip half-way round.

Legend: ``n`` devices of a group, ``P`` chips of it in a slice, ``S`` slices, ``N`` chips along
an axis of its span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.fabric import Floats, Ints, neighbour_table
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.lattice import shortest_ways
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.span import Span
from torchtpu_core.ici.torus import Torus

#: `[n, n]`, bytes that each device of a group sends to each.
Sizes = Sequence[Sequence[float]] | Floats
#: Devices of a group whose parts are held as a matrix.
MOST_DEVICES = 4096


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnevenParts:
    """What the chips of every group send each other.

    Attributes:
        span: what each group spans.
        within: `[S, P, P]`, bytes from position to position within a slice; what is for other
            slices goes to the same position there.
        dcn_bytes: most bytes that a chip sends to, or receives from, other slices.
        die_bytes: most bytes that a device sends to, or receives from, others than its own
            number on a chip.
    """

    span: Span
    within: Floats
    dcn_bytes: float = 0.0
    die_bytes: float = 0.0


def uneven_parts(group: Sequence[int], sizes: Sizes, network: Network) -> UnevenParts:
    """The parts of a group by chip.

    Args:
        group: the devices.
        sizes: `[n, n]`, bytes that each of them sends to each; what a device keeps is free.
        network: the job's.

    Raises:
        TorchTPUError: `sizes` do not fit the group.
    """
    parts = np.asarray(sizes, dtype=np.float64)
    devices = np.asarray(group, dtype=np.int64)
    count = len(devices)
    if count > MOST_DEVICES:
        raise TorchTPUError(
            f"The parts of an all-to-all of {count} devices are too many: at most {MOST_DEVICES} "
            "devices are priced by their parts. Price it as even, with collective_time."
        )
    if parts.shape != (count, count) or not (parts >= 0).all():
        raise TorchTPUError(
            f"The parts of an all-to-all of {count} devices are {count} x {count} sizes of at "
            f"least 0 bytes, not {' x '.join(map(str, parts.shape))} with a least of "
            f"{parts.min(initial=0.0):g}."
        )
    slice_, span = network.slice_, span_of(group, network)
    number, local = np.divmod(devices, slice_.devices)
    chip, core = np.divmod(local, slice_.devices_per_chip)
    place = np.unique(number, return_inverse=True)[1] * span.chips_per_slice
    place = place + _positions(chip, span, slice_.torus)
    every = np.zeros((span.slices * span.chips_per_slice,) * 2)
    np.add.at(every, (place[:, None], place[None, :]), parts * span.sharing)
    by_slice = every.reshape(span.slices, span.chips_per_slice, span.slices, -1)
    across = by_slice.sum(axis=1)
    across[np.arange(span.slices), np.arange(span.slices)] = 0.0
    turned = np.where(core[:, None] != core[None, :], parts, 0.0)
    return UnevenParts(
        span=span,
        within=by_slice.sum(axis=2),
        dcn_bytes=_most(across.sum(axis=1), across.sum(axis=0)),
        die_bytes=_most(turned.sum(axis=1), turned.sum(axis=0)),
    )


def _most(sent: Floats, received: Floats) -> float:
    return float(max(sent.max(), received.max()))


def _positions(chips: Ints, span: Span, torus: Torus) -> Ints:
    """Each chip's position in the span, its axes' first fastest."""
    if span.members is not None:
        return np.searchsorted(np.array(span.members), chips)
    positions, below, physical = np.zeros_like(chips), 1, 1
    starts = {axis.axis: axis for axis in span.axes}
    for axis, length in enumerate(torus.shape):
        places = chips // physical % length
        physical *= length
        if axis in starts:
            positions = positions + (places - places.min()) // starts[axis].stride * below
            below *= starts[axis].length
    return positions


def loads(parts: Floats, span: Span, torus: Torus) -> dict[tuple[int, int], Floats]:
    """Bytes on every link between neighbours of a group, by physical axis and direction.

    Args:
        parts: `[P, P]`, from position to position.
        span: what the group spans.
        torus: of the slice.

    Returns:
        `[P / N, N]` each: the link from a place to the next one up, or to it from there. Groups
        that interleave share the links.
    """
    if span.twisted:
        return _twisted_loads(parts, torus)
    lengths = [axis.length for axis in span.axes][::-1]
    count, found = len(lengths), {}
    grid = parts.reshape(*lengths, *lengths)
    for number, axis in enumerate(span.axes):
        # Numbers of the grid's dimensions go down; a part has gone along the axes before.
        mine = count - 1 - number
        gone = [count + dim for dim in range(count) if dim > mine]
        ahead = [dim for dim in range(count) if dim < mine]
        summed = (dim for dim in range(2 * count) if dim not in (*gone, *ahead, mine, count + mine))
        lines = grid.sum(axis=tuple(summed), keepdims=True)
        lines = np.moveaxis(lines, (mine, count + mine), (-2, -1))
        up, down = _along(lines.reshape(-1, axis.length, axis.length), wrap=axis.wrap)
        for way, load in ((1, up), (-1, down)):
            found[axis.axis, way] = load * axis.sharing
    return found


def _along(parts: Floats, *, wrap: bool) -> tuple[Floats, Floats]:
    """Loads of the links of lines or rings, up and down, `[L, N]`; `parts` `[L, N, N]`."""
    count, length, _ = parts.shape
    starts = np.arange(length)
    changes = np.zeros((2, count, 2 * length))
    for hops in range(1, length // 2 + 1 if wrap else length):
        share = 0.5 if wrap and 2 * hops == length else 1.0
        low = starts if wrap else starts[: length - hops]
        high = (low + hops) % length
        for way, (source, target) in enumerate(((low, high), (high, low))):
            sent = share * parts[:, source, target]
            changes[way][:, low] += sent
            changes[way][:, low + hops] -= sent
    unrolled = np.cumsum(changes, axis=2)
    folded = unrolled[:, :, :length] + unrolled[:, :, length:]
    return folded[0], folded[1]


def hops_and_ways(span: Span, torus: Torus) -> tuple[Ints, Ints]:
    """Hops from position to position, and how many ways share a part, `[P, P]` each."""
    if span.twisted:
        return _twisted_hops_and_ways(torus)
    places, below = np.arange(span.chips_per_slice), 1
    hops = np.zeros((len(places),) * 2, dtype=np.int64)
    ways = np.ones_like(hops)
    for axis in span.axes:
        place = places // below % axis.length
        below *= axis.length
        apart = np.abs(place[:, None] - place[None, :])
        if axis.wrap:
            ways <<= 2 * apart == axis.length
            apart = np.minimum(apart, axis.length - apart)
        hops += apart * axis.stride
    return hops, ways


def _twisted_loads(parts: Floats, torus: Torus) -> dict[tuple[int, int], Floats]:
    """The loads of a whole twisted torus: all chips go each way at once."""
    load = np.zeros((torus.chips, 2 * len(torus.shape)))
    everyone = np.arange(torus.chips)
    for crossed, ends, fraction in _twisted_ways(torus):
        sent = parts[everyone, ends] * fraction
        for chips, column in crossed:
            load[chips, column] += sent
    return {
        (axis, way): load[None, :, 2 * axis + (way < 0)] for axis in torus.axes for way in (1, -1)
    }


def _twisted_hops_and_ways(torus: Torus) -> tuple[Ints, Ints]:
    everyone = np.arange(torus.chips)
    hops = np.zeros((torus.chips,) * 2, dtype=np.int64)
    ways = np.ones_like(hops)
    for crossed, ends, fraction in _twisted_ways(torus):
        hops[everyone, ends] = len(crossed)
        ways[everyone, ends] = round(1 / fraction)
    return hops, ways


def _twisted_ways(torus: Torus) -> Iterator[tuple[list[tuple[Ints, int]], Ints, float]]:
    """For each way: where every chip's part crosses which link, its end, its share of a part."""
    table, ways = neighbour_table(torus), shortest_ways(torus)
    for moved, fraction in zip(ways.hops.tolist(), ways.fraction.tolist(), strict=True):
        chips, crossed = np.arange(torus.chips), []
        for axis, count in enumerate(moved):
            column = 2 * axis + (count < 0)
            for _ in range(abs(count)):
                crossed.append((chips, column))
                chips = table[chips, column]
        yield crossed, chips, fraction
