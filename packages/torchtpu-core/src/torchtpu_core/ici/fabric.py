# SPDX-License-Identifier: Apache-2.0
"""The links of a job as numbers, for arrays: neighbours, link numbers, ports.

A link's number is ``2 D chip + 2 axis + (0 if step > 0 else 1)`` with D axes of the torus;
after the links of all slices come two ports per chip, out to and in from the data centre
network, and last one link per device, to its
sibling on the chip. Chips are numbered slice by slice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtpu_core.ici.faults import detour
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.torus import Link, Torus
from torchtpu_core.units import PS_PER_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ABSENT = -1


@functools.lru_cache(maxsize=32)
def neighbour_table(torus: Torus) -> Ints:
    """The neighbour of each chip over each of its links, `[P, 2 D]`; `ABSENT` at an end."""
    lengths = np.array(torus.shape)
    below = np.concatenate([[1], np.cumprod(lengths)[:-1]])
    places = np.arange(torus.chips)[:, None] // below % lengths
    columns = []
    for axis in torus.axes:
        for step in (1, -1):
            moved = places.copy()
            moved[:, axis] += step
            turns = moved[:, axis] // torus.shape[axis]
            moved += turns[:, None] * np.array(torus.twist_of(axis))
            targets = (moved % lengths) @ below
            ends = (turns != 0) & (not torus.wrap[axis])
            columns.append(np.where(ends, ABSENT, targets))
    table = np.stack(columns, axis=1)
    table.setflags(write=False)
    return table


@dataclass(frozen=True, slots=True)
class Fabric:
    """Link numbers of a network.

    Attributes:
        network: the network.
    """

    network: Network

    @property
    def torus(self) -> Torus:
        """The torus of each slice."""
        return self.network.slice_.torus

    @property
    def ici_links(self) -> int:
        """Numbers of ICI links, including those missing at the ends of lines."""
        return self.network.chips * 2 * len(self.torus.shape)

    @property
    def per_slice(self) -> int:
        """Numbers of ICI links of a slice."""
        return self.torus.chips * 2 * len(self.torus.shape)

    def number(self, link: Link) -> int:
        """The number of a link of the first slice."""
        return link.source * 2 * len(self.torus.shape) + 2 * link.axis + (link.step < 0)

    def detours(self) -> dict[int, Ints]:
        """For each link of the first slice that is down, the links that take its place."""
        faults = self.network.faults
        return {
            self.number(link): np.array(
                [self.number(step) for step in detour(self.torus, faults, link)], dtype=np.int64
            )
            for link, left in faults.affected(self.torus).items()
            if left == 0 and not faults.chips_down & {link.source, link.target}
        }

    @property
    def links(self) -> int:
        """All link numbers."""
        return self.ici_links + 2 * self.network.chips + self.network.devices

    def port_out(self, chip: Ints) -> Ints:
        """The port by which chips send to other slices."""
        return self.ici_links + chip

    def port_in(self, chip: Ints) -> Ints:
        """The port by which chips receive from other slices."""
        return self.ici_links + self.network.chips + chip

    def die(self, device: Ints) -> Ints:
        """The link by which devices send to their siblings."""
        return self.ici_links + 2 * self.network.chips + device

    def capacity(self) -> Floats:
        """Bytes per picosecond of every link; zero where there is none."""
        network = self.network
        rates = np.zeros(self.links)
        present = np.tile(neighbour_table(self.torus).reshape(-1) != ABSENT, network.slices)
        rates[: self.ici_links] = present * network.link.bytes_per_s
        for link, left in network.faults.affected(self.torus).items():
            rates[self.number(link) : self.ici_links : self.per_slice] *= left
        ports = slice(self.ici_links, self.ici_links + 2 * network.chips)
        rates[ports] = network.dcn.bytes_per_s if network.dcn else 0.0
        rates[ports.stop :] = network.die.bytes_per_s if network.die else 0.0
        return rates / PS_PER_S

    def label(self, link: int) -> str:
        """A link for people, such as ``axis 0``."""
        if link >= self.ici_links + 2 * self.network.chips:
            return "die"
        if link >= self.ici_links:
            return "dcn"
        return f"axis {link % (2 * len(self.torus.shape)) // 2}"
