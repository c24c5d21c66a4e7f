# SPDX-License-Identifier: Apache-2.0
"""Meshes: logical axes (data, fsdp, tensor, ...) laid onto the physical ones.

`topology_aware_mesh` chooses the layout; a `Mesh` says which devices stand where, and what
each logical axis spans, which is what the network models take. A logical axis is made of
*digits*: parts of physical axes, each with a stride. Besides the axes of the torus there
are two more physical ones: the devices of a chip, and the slices of a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchtpu_core.errors import MeshShapeError, did_you_mean
from torchtpu_core.ici.fabric import Ints
from torchtpu_core.ici.groups import grid_axis, whole_axes
from torchtpu_core.ici.layouts import CORES, SLICES, Digit, best_layout
from torchtpu_core.ici.model import Message
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.span import Span

#: Bytes that an axis of this name moves, relative to the others, where nothing is said.
USUAL_TRAFFIC: Mapping[str, float] = {
    "tensor": 16.0,
    "model": 16.0,
    "tp": 16.0,
    "sequence": 8.0,
    "context": 8.0,
    "cp": 8.0,
    "expert": 8.0,
    "ep": 8.0,
    "fsdp": 4.0,
    "dp_shard": 4.0,
    "data": 1.0,
    "dp": 1.0,
    "dp_replicate": 1.0,
    "pipeline": 0.5,
    "pp": 0.5,
}
OTHER_TRAFFIC = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Logical axes on a network.

    Attributes:
        network: slices and links.
        sizes: devices along each logical axis, by name, outermost first.
        digits: for each name, the parts of physical axes it is made of, neighbours first.
    """

    network: Network
    sizes: Mapping[str, int]
    digits: Mapping[str, tuple[Digit, ...]]

    @property
    def devices(self) -> Ints:
        """Device numbers, one dimension per logical axis."""
        slice_ = self.network.slice_
        places = dict.fromkeys((*slice_.torus.axes, CORES, SLICES), 0)
        grids = np.indices(tuple(self.sizes.values()))
        located: dict[int, Ints | int] = dict(places)
        for name, grid in zip(self.sizes, grids, strict=True):
            for digit in self.digits[name]:
                grid, place = np.divmod(grid, digit.length)
                located[digit.dim] = located[digit.dim] + place * digit.stride
        chip: Ints | int = 0
        for axis in reversed(slice_.torus.axes):
            chip = chip * slice_.torus.shape[axis] + located[axis]
        in_slice = chip * slice_.devices_per_chip + located[CORES]
        return np.asarray(located[SLICES] * slice_.devices + in_slice, dtype=np.int64)

    def span(self, *names: str) -> Span:
        """What the groups along one logical axis, or along several together, span.

        Raises:
            MeshShapeError: the mesh has no axis of this name.
        """
        for name in names:
            if name not in self.digits:
                raise MeshShapeError(
                    f"The mesh has no axis {name!r}.{did_you_mean(name, self.digits)} "
                    f"It has: {', '.join(self.digits)}."
                )
        return span_of_digits(
            self.network, tuple(d for name in dict.fromkeys(names) for d in self.digits[name])
        )

    def shift(self, name: str, size_bytes: float, by: int = 1) -> list[Message]:
        """The messages of a permute along a logical axis: each device to the one `by` further.

        The last goes to the first, as in ring attention; a pipeline leaves those out.

        Raises:
            MeshShapeError: the mesh has no axis of this name.
        """
        self.span(name)
        axis = list(self.sizes).index(name)
        targets = np.roll(self.devices, -by, axis=axis)
        ends = zip(self.devices.ravel().tolist(), targets.ravel().tolist(), strict=True)
        return [Message(source, target, size_bytes) for source, target in ends if source != target]

    def describe(self) -> str:
        """The layout for people, one line per logical axis."""
        return "\n".join(
            f"{name}={size}: {' x '.join(map(str, self.digits[name])) or 'nothing'}"
            for name, size in self.sizes.items()
        )


def topology_aware_mesh(
    where: Slice | Network,
    sizes: Mapping[str, int],
    *,
    traffic: Mapping[str, float] | None = None,
) -> Mesh:
    """Lays logical axes onto the physical ones, the busiest onto the fastest.

    Of all ways to make each logical axis of parts of physical ones, takes the one whose
    gathers, each weighted by its axis's traffic, take the least simulated time.

    Args:
        where: the slice, or a network of several.
        sizes: devices along each logical axis, outermost first; one may be -1, which takes
            what is left.
        traffic: bytes that an axis moves, relative to the others; by default what is usual
            for its name.

    Raises:
        MeshShapeError: the sizes do not multiply to the number of devices; the message says
            which would.

    >>> from torchtpu_core.ici.slices import parse_slice
    >>> mesh = topology_aware_mesh(parse_slice("v5e:16x16"), {"fsdp": 16, "tensor": 16})
    >>> mesh.span("tensor").torus.wrap
    (True,)
    """
    network = where if isinstance(where, Network) else Network.of(where)
    whole = complete_sizes(sizes, network.devices)
    weights = {
        name: (traffic or {}).get(name, USUAL_TRAFFIC.get(name, OTHER_TRAFFIC)) for name in whole
    }
    return Mesh(network=network, sizes=whole, digits=best_layout(network, whole, weights))


def complete_sizes(sizes: Mapping[str, int], devices: int, what: str = "devices") -> dict[str, int]:
    """Sizes with -1 filled in.

    Args:
        sizes: along each axis, one of them -1 or none.
        devices: what they multiply to.
        what: what is counted, in messages.

    Raises:
        MeshShapeError: they cannot be.

    >>> complete_sizes({"data": -1, "model": 4}, 12)
    {'data': 3, 'model': 4}
    """
    wrong = {name: size for name, size in sizes.items() if size < 1 and size != -1}
    free = [name for name, size in sizes.items() if size == -1]
    if wrong or len(free) > 1 or not sizes:
        raise MeshShapeError(
            f"A mesh has axes of at least one device, and at most one of size -1, unlike "
            f"{_shown(sizes)}. There are {devices} {what}."
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    if devices % known or (not free and known != devices):
        raise MeshShapeError(_advice(sizes, known, devices, bool(free)).format(what=what))
    return {name: devices // known if size == -1 else size for name, size in sizes.items()}


def span_of_digits(network: Network, digits: tuple[Digit, ...]) -> Span:
    """The span of the groups whose devices differ in these digits."""
    torus = network.slice_.torus
    axes = []
    for axis in torus.axes:
        parts = sorted((d.stride, d.length) for d in digits if d.dim == axis and d.length > 1)
        merged: list[list[int]] = []
        for stride, length in parts:
            if merged and merged[-1][0] * merged[-1][1] == stride:
                merged[-1][1] *= length
            else:
                merged.append([stride, length])
        axes += [grid_axis(torus, axis, length, stride) for stride, length in merged]
    cores = math.prod(digit.length for digit in digits if digit.dim == CORES)
    twisted = torus.twisted and math.prod(axis.length for axis in axes) == torus.chips
    return Span(
        axes=whole_axes(torus) if twisted else tuple(axes),
        cores=cores,
        sharing=network.slice_.devices_per_chip // cores,
        slices=math.prod(digit.length for digit in digits if digit.dim == SLICES),
        twisted=twisted,
    )


def _advice(sizes: Mapping[str, int], known: int, devices: int, free: bool) -> str:
    """Why the sizes do not fit, and what would."""
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    fits = []
    for name, size in sizes.items():
        rest = known // size
        if size == -1 or devices % rest:
            continue
        possible = [n for n in divisors if devices // rest % n == 0] if free else [devices // rest]
        below = [n for n in possible if n < size][-1:]
        fits += [f"{name}={n}" for n in (*below, *[n for n in possible if n > size][:1])]
    count = known * max(round(devices / known), 1) if free else known
    use = f"Use {' or '.join(fits) or _most_like(sizes, devices, free)}, or"
    wrong = f"{known} does not divide {devices}" if devices % known else f"they make {known}"
    mesh = f"{devices} {{what}} cannot form a mesh ({_shown(sizes)})"
    return f"{mesh}: {wrong}. {use} {count} {{what}}."


def _most_like(sizes: Mapping[str, int], devices: int, free: bool) -> str:
    """The sizes that fit and are most like these, where no change of one size fits."""
    asked = {name: size for name, size in sizes.items() if size != -1}

    def unlikeness(found: tuple[int, ...]) -> float:
        return sum(abs(math.log2(n / one)) for n, one in zip(found, asked.values(), strict=True))

    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    found = min(_divisions(devices, divisors, len(asked), free), key=unlikeness)
    return " and ".join(f"{name}={n}" for name, n in zip(asked, found, strict=True))


def _divisions(
    devices: int, divisors: Sequence[int], count: int, free: bool
) -> Iterator[tuple[int, ...]]:
    """So many numbers whose product is that of all devices, or divides it if one size is free."""
    if not count:
        yield from [()] if free or devices == 1 else []
        return
    for first in (n for n in divisors if devices % n == 0):
        others = _divisions(devices // first, divisors, count - 1, free)
        yield from ((first, *rest) for rest in others)


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={'?' if size == -1 else size}" for name, size in sizes.items())
