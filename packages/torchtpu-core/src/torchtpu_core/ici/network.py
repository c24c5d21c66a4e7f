# SPDX-License-Identifier: Apache-2.0
"""The network of a job: one slice, or several joined by the data centre network.

Holds what both network models are given: geometry, rates with their sources, faults.
Chips are numbered slice by slice, and within a slice as its torus numbers them. The data
centre network is taken to be a switch without a bottleneck of its own: each chip has its
share of its host's port, in each direction. Host-side staging is in the rate that is
reached; switches' oversubscription and other tenants are not modelled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchtpu_core.errors import TargetError, UnpublishedFigureError
from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.sourced import Sourced, Status
from torchtpu_core.ici.collectives import IciLink
from torchtpu_core.ici.faults import NO_FAULTS, Faults, detour
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.span import NO_AXIS

DCN_ACHIEVABLE_FRACTION = Sourced(
    0.66,
    "tpu-recipes, Trillium: psum of 606 MB in 73.7 ms, which its formula for two slices calls "
    "4.11 GB/s; each chip sends 606 MB, 8.2 of 12.5 GB/s",
    Status.MEASURED,
)
DCN_LATENCY_S = Sourced(
    20e-6,
    "chosen: two hosts of a data centre and the copies to and from the chips; not published",
    Status.ASSUMED,
)
# A detour goes along a parallel ring, whose own flow it shares the links with.
SHARED_BY_DETOUR = 1 / 2
# MaxText gives the dies' rate; their latency is below that of a hop and not published.
DIE_LATENCY_S = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a collective runs on.

    Attributes:
        slice_: the slice; all slices of a job are alike.
        link: one direction of one ICI link.
        slices: slices of the job.
        dcn: a chip's share of the data centre network, one direction; None for one slice.
        die: the link between the devices of a chip; None if not published or not needed.
        faults: what is wrong with the slices.
    """

    slice_: Slice
    link: IciLink
    slices: int = 1
    dcn: IciLink | None = None
    die: IciLink | None = None
    faults: Faults = NO_FAULTS

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise TargetError(f"A job has at least one slice, not {self.slices}.")
        if self.slices > 1 and self.dcn is None:
            raise TargetError(
                f"{self.slices} slices need a network between them: give `dcn`, or use "
                "Network.of, which takes the chip's."
            )
        self.faults.check(self.slice_.torus)

    @classmethod
    def of(cls, slice_: Slice, slices: int = 1, faults: Faults | None = None) -> Network:
        """The network of a slice's generation, at the rates that are reached in practice.

        Raises:
            UnpublishedFigureError: several slices of a chip whose network is not published.
        """
        link = IciLink.of(slice_.chip)
        return cls(
            slice_=slice_,
            link=link,
            slices=slices,
            dcn=dcn_link(slice_.chip) if slices > 1 else None,
            die=_die_link(slice_.chip, link),
            faults=faults or NO_FAULTS,
        )

    def axis_link(self, axis: int) -> IciLink:
        """The slowest link along an axis of the torus, which a ring along it waits for.

        One that is down counts as its detour, whose links it shares with their own flows.
        """
        if not self.faults:
            return self.link
        return _axis_link(self, axis)

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.slice_.torus.chips * self.slices

    @property
    def devices(self) -> int:
        """Devices of all slices."""
        return self.slice_.devices * self.slices

    def chip_of(self, device: int) -> int:
        """The chip of a device, both numbered slice by slice."""
        slice_number, local = divmod(device, self.slice_.devices)
        return slice_number * self.slice_.torus.chips + self.slice_.chip_of(local)

    def needed_die(self) -> IciLink:
        """The link between the devices of one chip.

        Raises:
            UnpublishedFigureError: its rate is not published.
        """
        if self.die is None:
            self.slice_.chip.figure("die_to_die_ratio")
            raise UnpublishedFigureError(f"{self.slice_.chip.name} has one device per chip.")
        return self.die


def dcn_link(chip: Chip) -> IciLink:
    """A chip's share of the data centre network, at the rate collectives reach on it.

    Raises:
        UnpublishedFigureError: the maker has not published it.
    """
    achieved = chip.dcn_achieved_bytes_per_s_per_chip
    rate = (
        achieved.value
        if achieved is not None
        else chip.figure("dcn_bytes_per_s_per_chip") * DCN_ACHIEVABLE_FRACTION.value
    )
    return IciLink(bytes_per_s=rate, hop_latency_s=DCN_LATENCY_S.value)


@functools.lru_cache(maxsize=256)
def _axis_link(network: Network, axis: int) -> IciLink:
    torus, left, hops = network.slice_.torus, 1.0, 1
    for link, fraction in network.faults.affected(torus).items():
        if axis not in (link.axis, NO_AXIS):
            continue
        if fraction == 0:
            hops = max(hops, len(detour(torus, network.faults, link)))
            fraction = SHARED_BY_DETOUR
        left = min(left, fraction)
    return IciLink(
        bytes_per_s=left * network.link.bytes_per_s,
        hop_latency_s=hops * network.link.hop_latency_s,
    )


def _die_link(chip: Chip, link: IciLink) -> IciLink | None:
    if chip.die_to_die_ratio is None:
        return None
    return IciLink(
        bytes_per_s=chip.die_to_die_ratio.value * link.bytes_per_s, hop_latency_s=DIE_LATENCY_S
    )
