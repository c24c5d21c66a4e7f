# SPDX-License-Identifier: Apache-2.0
"""A slice: chips of one generation, joined to a torus and spread over hosts.

Reads the names users write, such as ``v5p:4x4x8``, and refuses shapes that the
generation does not come in. Devices are numbered chip by chip, the cores of a chip
side by side; hosts in the order of their first chip.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu_core.errors import DeviceIndexError, TargetError
from torchtpu_core.hardware.chip import Chip, Wrap
from torchtpu_core.hardware.registry import ChipRegistry, chips
from torchtpu_core.ici.torus import Torus

Shape = tuple[int, ...]

CUBE_SIDE = 4
CUBE_CHIPS = CUBE_SIDE**3
_SLICE = re.compile(r"(?P<chip>[^:]+):(?P<shape>\d+(?:x\d+)*)(?P<twist>_twisted|_untwisted)?")
_NEEDED = ("cores_per_chip", "devices_per_chip", "ici_bytes_per_s_per_link")


def shape_name(shape: Shape) -> str:
    """A shape as users write it.

    >>> shape_name((4, 4, 8))
    '4x4x8'
    """
    return "x".join(map(str, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The chips that one job sees.

    Attributes:
        chip: the generation.
        torus: how the chips are joined.
        host_bounds: chips of one host along each axis.
    """

    chip: Chip
    torus: Torus
    host_bounds: Shape

    @property
    def name(self) -> str:
        """The name that `parse_slice` reads."""
        twist = "_twisted" if self.torus.twisted else ""
        return f"{self.chip.name}:{shape_name(self.torus.shape)}{twist}"

    @property
    def devices_per_chip(self) -> int:
        """Devices that torch numbers on each chip."""
        return int(self.chip.devices_per_chip or 1)

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return self.torus.chips * self.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """Chips of each host."""
        return math.prod(self.host_bounds)

    @property
    def hosts(self) -> int:
        """Virtual machines, one process of the user's script on each."""
        return self.torus.chips // self.chips_per_host

    @property
    def devices_per_host(self) -> int:
        """What ``torch.tpu.device_count()`` answers on each host."""
        return self.chips_per_host * self.devices_per_chip

    def chip_of(self, device: int) -> int:
        """The chip of a device."""
        if not 0 <= device < self.devices:
            raise DeviceIndexError(
                f"Device {device} is not one of the {self.devices} devices of {self.name}."
            )
        return device // self.devices_per_chip

    def host_of(self, device: int) -> int:
        """The host of a device."""
        position = self.torus.coordinates(self.chip_of(device))
        places = [place // bound for place, bound in zip(position, self.host_bounds, strict=True)]
        return self._host_grid().chip_at(tuple(places))

    def local_devices(self, host: int) -> tuple[int, ...]:
        """The devices of a host, in the order in which torch numbers them there."""
        if not 0 <= host < self.hosts:
            raise DeviceIndexError(f"Host {host} is not one of the {self.hosts} of {self.name}.")
        places = zip(self._host_grid().coordinates(host), self.host_bounds, strict=True)
        spans = [range(place * bound, (place + 1) * bound) for place, bound in places]
        members = sorted(map(self.torus.chip_at, itertools.product(*spans)))
        cores = range(self.devices_per_chip)
        return tuple(chip * len(cores) + core for chip in members for core in cores)

    def _host_grid(self) -> Torus:
        sides = zip(self.torus.shape, self.host_bounds, strict=True)
        shape = tuple(length // bound for length, bound in sides)
        return Torus(shape=shape, wrap=(False,) * len(shape))


def parse_slice(text: str, registry: ChipRegistry | None = None) -> Slice:
    """The slice of a name such as ``v5e:2x2`` or ``ironwood:4x4x4``.

    Raises:
        TargetError: not of this form, an unknown chip, or a shape that the chip does
            not come in; the message names the nearest shapes.

    >>> parse_slice("v5p:4x4x4").hosts
    16
    """
    match = _SLICE.fullmatch(text.strip().lower())
    if match is None:
        raise TargetError(
            f"{text!r} does not name a slice. Write a chip, a colon and the number of chips "
            "along each axis, such as v5e:2x2 or v5p:4x4x4."
        )
    chip = (registry or chips()).get(match["chip"])
    shape = tuple(map(int, match["shape"].split("x")))
    return make_slice(chip, shape, twisted=match["twist"] == "_twisted")


def make_slice(chip: Chip, shape: Shape, *, twisted: bool = False) -> Slice:
    """The slice of `shape` of a generation.

    Raises:
        TargetError: the chip's torus is not published, or does not come in `shape`.
    """
    missing = [field for field in _NEEDED if getattr(chip, field) is None]
    if missing or not chip.ici_axes:
        lacks = ", ".join(missing) or "a torus"
        raise TargetError(
            f"{chip.name} cannot be simulated: its record has no {lacks} "
            f"({chip.geometry_source}). Choose another chip, such as tpu7x."
        )
    if shape not in possible_shapes(chip):
        names = ", ".join(f"{chip.name}:{shape_name(near)}" for near in nearest_shapes(chip, shape))
        most = max(map(math.prod, possible_shapes(chip)))
        several = f" More than {most} chips are several slices." if math.prod(shape) > most else ""
        raise TargetError(
            f"{chip.name} does not come in a slice of {shape_name(shape)} "
            f"({math.prod(shape)} chips). Nearest: {names}.{several}"
        )
    twist = twist_of(chip, shape) if twisted else ()
    torus = Torus(shape=shape, wrap=wrap_of(chip, shape), twist=twist)
    return Slice(chip=chip, torus=torus, host_bounds=_host_bounds(chip, shape))


def wrap_of(chip: Chip, shape: Shape) -> tuple[bool, ...]:
    """Which axes of a slice close to rings, by the rule of the generation."""
    if chip.wrap is Wrap.WHOLE_CUBES:
        return (all(length % CUBE_SIDE == 0 for length in shape),) * len(shape)
    if chip.wrap is Wrap.FULL_AXIS:
        return tuple(length == full for length, full in zip(shape, chip.pod_shape, strict=True))
    return (False,) * len(shape)


def twist_of(chip: Chip, shape: Shape) -> tuple[Shape, ...]:
    """The twist of a twisted torus: short axes wrap into the other half of the long ones.

    Raises:
        TargetError: the chip's tori, or those of this shape, are not twisted.

    >>> from torchtpu_core.hardware import chips
    >>> twist_of(chips().get("v5p"), (4, 4, 8))
    ((0, 0, 4), (0, 0, 4), (0, 0, 0))
    """
    short = min(shape)
    twistable = len(shape) == 3 and max(shape) == 2 * short == 2 * shape[0] == shape[2]
    if not (chip.twists and twistable and short % CUBE_SIDE == 0):
        raise TargetError(
            f"{chip.name}:{shape_name(shape)} cannot be twisted: only tori of v4 and v5p of "
            f"shapes AxAx2A and Ax2Ax2A, A a multiple of {CUBE_SIDE}, can. Nearest: "
            f"{_nearest_twisted(shape)}."
        )
    shift = tuple(short if length > short else 0 for length in shape)
    return tuple(shift if length == short else (0,) * len(shape) for length in shape)


def _nearest_twisted(shape: Shape) -> str:
    wanted = math.log2(max(math.prod(shape), 1))
    sides = range(CUBE_SIDE, 4 * CUBE_SIDE + 1, CUBE_SIDE)
    known = [s for a in sides for s in ((a, a, 2 * a), (a, 2 * a, 2 * a))]
    near = min(known, key=lambda candidate: abs(math.log2(math.prod(candidate)) - wanted))
    return f"v5p:{shape_name(near)}_twisted"


@functools.cache
def possible_shapes(chip: Chip) -> tuple[Shape, ...]:
    """All shapes of slices of a generation, axes in ascending order."""
    cubes = _whole_cubes(chip.pod_chips) if chip.wrap is Wrap.WHOLE_CUBES else ()
    return (*chip.slice_shapes, *cubes)


def nearest_shapes(chip: Chip, shape: Shape, count: int = 2) -> list[Shape]:
    """The possible shapes most like `shape`: first in chips, then in side lengths.

    Lengths are those of a shape with so many chips in the proportions of `shape`. A number of
    chips alone is like the most compact shape of so many.
    """
    side = math.prod(shape) ** (1 / max(chip.ici_axes, 1))
    compact = [round(side)] * chip.ici_axes
    wanted = compact if len(shape) == 1 else sorted(shape, reverse=True)

    def unlikeness(candidate: Shape) -> tuple[float, float]:
        sides = itertools.zip_longest(wanted, sorted(candidate, reverse=True), fillvalue=1)
        ratio = math.prod(candidate) / max(math.prod(shape), 1)
        scale = ratio ** (1 / len(wanted))
        return abs(math.log2(ratio)), sum(abs(have - scale * want) for want, have in sides)

    return sorted(possible_shapes(chip), key=unlikeness)[:count]


def _whole_cubes(most_chips: int) -> Iterator[Shape]:
    """Shapes made of whole 4x4x4 cubes, axes ascending."""
    most_cubes = most_chips // CUBE_CHIPS
    for a in range(1, most_cubes + 1):
        for b in range(a, most_cubes // a + 1):
            for c in range(b, most_cubes // (a * b) + 1):
                yield a * CUBE_SIDE, b * CUBE_SIDE, c * CUBE_SIDE


def _host_bounds(chip: Chip, shape: Shape) -> Shape:
    """Chips of one host along each axis: all of a small slice, else the usual VM."""
    if shape in chip.single_vm_shapes:
        return shape
    return tuple(min(length, bound) for length, bound in zip(shape, chip.host_bounds, strict=True))
