# SPDX-License-Identifier: Apache-2.0
"""Prices the collectives of a program with a network model.

Turns what a program says (bytes per device, groups of device numbers) into what a network
model takes: the span of the groups, or the messages of a permutation. Groups of one
collective run at the same time; different collectives are priced one after another.
"""

from __future__ import annotations

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.ici.groups import span_of
from torchtpu_core.ici.model import CollectiveTime, Message, NetworkModel, network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.torus import Torus
from torchtpu_core.plugins import collect_if_loaded
from torchtpu_core.simulator.calibration import COLLECTIVE_START_S
from torchtpu_core.simulator.cost import Collective, CollectiveKind
from torchtpu_core.units import ceil_div


def collective_s(collective: Collective, where: Chip | Slice, devices: int) -> float:
    """Seconds of one run of a collective.

    Args:
        collective: what the program says of it.
        where: a slice; a chip alone makes its devices a line of such chips.
        devices: devices of the program, which are the group where none is named.

    Raises:
        UnpublishedFigureError: a group within one chip whose inner rate is not published.
    """
    slice_ = where if isinstance(where, Slice) else _line_of(where, collective, devices)
    return collective_time(collective, model_of(slice_), devices).time_s


def collective_time(collective: Collective, model: NetworkModel, devices: int) -> CollectiveTime:
    """Simulated time of one run of a collective, by a network model.

    Args:
        collective: what the program says of it.
        model: the network model of the slices it runs on.
        devices: devices of the program, which are the group where none is named.
    """
    if collective.kind is CollectiveKind.PERMUTE:
        messages = [
            Message(source, target, collective.operand_bytes)
            for source, target in collective.groups
            if source != target
        ]
        return model.messages_time(messages)
    # Groups are alike but for irregular ones, of which the first and the last are looked at.
    groups = {collective.groups[0], collective.groups[-1]} if collective.groups else None
    times = [
        model.collective_time(
            collective.kind, collective.operand_bytes, span_of(group, model.network)
        )
        for group in groups or {tuple(range(devices))}
    ]
    return max(times, key=lambda time: time.time_ps)


def start_s(found: CollectiveTime) -> float:
    """Seconds to begin the phases of a collective, which network models leave out."""
    return COLLECTIVE_START_S.value * found.phases if found.time_ps else 0.0


def model_of(slice_: Slice) -> NetworkModel:
    """The network model of a slice: a plugin's, or the closed form."""
    network = Network.of(slice_)
    brought = collect_if_loaded("torchtpu_network_model", network=network)
    return next((model for _, model in brought if model is not None), network_model(network))


def _line_of(chip: Chip, collective: Collective, devices: int) -> Slice:
    """A line of chips that holds all devices the collective names."""
    named = max((device + 1 for group in collective.groups for device in group), default=0)
    length = ceil_div(max(devices, named), chip.devices_per_chip or 1)
    torus = Torus(shape=(length,), wrap=(False,))
    return Slice(chip=chip, torus=torus, host_bounds=(1,))
