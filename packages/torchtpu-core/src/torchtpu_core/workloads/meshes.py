# SPDX-License-Identifier: Apache-2.0
"""The slice of a spec, and the logical mesh on it."""

from __future__ import annotations

import math

from torchtpu_core.errors import MeshShapeError
from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici.slices import Slice, make_slice, possible_shapes
from torchtpu_core.workloads.spec import Parallel, Spec


def sizes_of(parallel: Parallel, chips_per_slice: int) -> dict[str, int]:
    """Chips along each logical axis of one slice; `data` is what the others leave.

    Raises:
        MeshShapeError: the axes do not divide the slice.
    """
    sizes = {
        "tensor": parallel.tensor,
        "context": parallel.context,
        "expert": parallel.expert,
        "pipeline": parallel.pipeline,
    }
    rest, remainder = divmod(chips_per_slice, math.prod(sizes.values()))
    fsdp = rest if parallel.fsdp == -1 else parallel.fsdp
    if remainder or not rest or rest % fsdp:
        raise MeshShapeError(
            f"Axes {sizes} and fsdp={parallel.fsdp} do not divide the {chips_per_slice} chips "
            "of a slice. Choose sizes whose product divides it, or fsdp = -1."
        )
    return {**sizes, "fsdp": fsdp, "data": rest // fsdp}


def slice_of(spec: Spec) -> Slice | None:
    """The slice of a spec; None for a single chip.

    A topology that is one number means the most compact slice of so many chips.

    Raises:
        TargetError: the chip does not come in that shape.
    """
    hardware = spec.hardware
    sides = [int(side) for side in hardware.topology.split("x")]
    if math.prod(sides) == 1:
        return None
    if len(sides) == 1:
        return most_compact_slice(hardware.chip, sides[0])
    known = possible_shapes(chips().get(hardware.chip))
    order = sorted(sides)
    shape = next((s for s in known if sorted(s) == order), tuple(sides))
    return make_slice(chips().get(hardware.chip), shape)


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
