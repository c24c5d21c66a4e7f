# SPDX-License-Identifier: Apache-2.0
"""The slice of a spec, and the logical mesh on it."""

from __future__ import annotations

import math
from dataclasses import replace

from torchtpu_core.errors import SpecError
from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici.collectives import IciLink
from torchtpu_core.ici.mesh import complete_sizes
from torchtpu_core.ici.network import DCN_LATENCY_S, Network
from torchtpu_core.ici.slices import Slice, make_slice, parse_slice, possible_shapes
from torchtpu_core.ici.torus import SMALLEST_RING, Torus
from torchtpu_core.workloads.microbenchmarks import CollectiveRun
from torchtpu_core.workloads.spec import Hardware, Parallel, Spec


def sizes_of(parallel: Parallel, chips_per_slice: int) -> dict[str, int]:
    """Chips along each logical axis of one slice; `data` is what the others leave.

    Raises:
        MeshShapeError: the axes do not divide the slice.
    """
    asked = {
        "tensor": parallel.tensor,
        "context": parallel.context,
        "expert": parallel.expert,
        "pipeline": parallel.pipeline,
        "fsdp": parallel.fsdp,
        "data": 1 if parallel.fsdp == -1 else -1,
    }
    return complete_sizes(asked, chips_per_slice, "chips of a slice")


def network_of(hardware: Hardware, slices: int | None = None) -> Network:
    """The network of a spec's hardware, on another number of slices if given.

    Raises:
        TargetError: the chip does not come in that shape.
        UnpublishedFigureError: several slices, and neither the spec nor the chip has a rate.
    """
    where = _slice_of(hardware) or _one_chip(hardware.chip)
    slices = slices or hardware.slices
    if slices == 1 or not hardware.dcn_bytes_per_s_per_chip:
        return Network.of(where, slices)
    dcn = IciLink(bytes_per_s=hardware.dcn_bytes_per_s_per_chip, hop_latency_s=DCN_LATENCY_S.value)
    return replace(Network.of(where), slices=slices, dcn=dcn)


def _one_chip(name: str) -> Slice:
    """A chip alone, whether or not it is sold alone."""
    return Slice(chip=chips().get(name), torus=Torus(shape=(1,), wrap=(False,)), host_bounds=(1,))


def slice_of(spec: Spec) -> Slice | None:
    """The slice of a spec; None for a single chip.

    A topology that is one number means the most compact slice of so many chips.

    Raises:
        TargetError: the chip does not come in that shape.
    """
    return _slice_of(spec.hardware)


def _slice_of(hardware: Hardware) -> Slice | None:
    if "_" in hardware.topology:
        return parse_slice(f"{hardware.chip}:{hardware.topology}")
    sides = [int(side) for side in hardware.topology.split("x")]
    if math.prod(sides) == 1:
        return None
    if len(sides) == 1:
        return most_compact_slice(hardware.chip, sides[0])
    known = possible_shapes(chips().get(hardware.chip))
    order = sorted(sides)
    shape = next((s for s in known if sorted(s) == order), tuple(sides))
    return make_slice(chips().get(hardware.chip), shape)


def check_group(run: CollectiveRun, torus: Torus) -> None:
    """Refuses a group that a slice does not hold, and ways longer than its longest axis.

    A group may be given without a slice around it.

    Raises:
        SpecError: as the summary says, or rings too short to close.
    """
    sides = run.span.split("x") if run.span else []
    for side in sides:
        length = int(side.removesuffix("w"))
        if length < (SMALLEST_RING if side.endswith("w") else 1):
            raise SpecError(
                f"span = {run.span!r}: {side!r} is no axis; a line has 1 chip or more, such as 2, "
                f"and a ring {SMALLEST_RING} or more, such as {SMALLEST_RING}w."
            )
    if not run.dcn and (run.group if sides else torus.chips) == 1:
        raise SpecError(
            f"span = {run.span!r} on a slice of {torus.chips} chip(s) is one chip, which has "
            "nobody to talk to: give hardware.topology, such as 2x2, or a span of 2 or more."
        )
    if torus.chips > 1 and torus.chips % run.group:
        raise SpecError(
            f"span = {run.span!r} is {run.group} chips, which do not divide the {torus.chips} of "
            "a slice."
        )
    longest = max(torus.shape)
    if run.kind in ("permute", "send") and not 0 < run.hops < longest:
        raise SpecError(f"hops = {run.hops} on an axis of {longest} chips: use 1 to {longest - 1}.")


def most_compact_slice(chip_name: str, count: int) -> Slice:
    """The slice of `count` chips with the shortest sides.

    Raises:
        TargetError: there is none; the message names the nearest shapes.
    """
    chip = chips().get(chip_name)
    shapes = [shape for shape in possible_shapes(chip) if math.prod(shape) == count]
    return make_slice(
        chip, min(shapes, key=sum) if shapes else (1,) * (chip.ici_axes - 1) + (count,)
    )
