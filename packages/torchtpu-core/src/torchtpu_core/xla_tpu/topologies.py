# SPDX-License-Identifier: Apache-2.0
"""What libtpu calls the slices that this project simulates. Imports neither torch nor JAX.

A compiler topology needs no TPU. libtpu is not asked here: it aborts the process for some
names, so that only what is in the table goes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtpu_core.errors import CompilerTargetError
from torchtpu_core.ici.slices import Slice, shape_name
from torchtpu_core.targets import Target

#: Generations that libtpu 0.0.42 compiles for, by our name of the chip.
NAMES = {
    "v2": "v2",
    "v3": "v3",
    "v4": "v4",
    "v5e": "v5e",
    "v5p": "v5p",
    "v6e": "v6e",
    "tpu7x": "tpu7x",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Arguments of ``jax.experimental.topologies.get_topology_desc``.

    Attributes:
        name: such as ``v5p:4x4x8_twisted``.
        options: keyword arguments beside the name.
        devices: devices of the topology.
    """

    name: str
    options: dict[str, Any]
    devices: int


def topology_of(target: Target, slices: int = 1) -> Topology:
    """The compiler's topology of a simulated slice, or of several.

    Raises:
        CompilerTargetError: libtpu does not compile for this chip, or the target is no slice.

    >>> from torchtpu_core.targets import parse_target
    >>> topology_of(parse_target("v5p:2x2x1")).name
    'v5p:2x2x1'
    """
    where = target.slice_
    if where is None:
        raise CompilerTargetError(
            f"{target.name!r} does not say which chips to compile for. Name a slice, such as "
            "v5p:2x2x1 or v5e:2x2."
        )
    name = NAMES.get(where.chip.name)
    if name is None:
        raise CompilerTargetError(
            f"XLA's TPU compiler in libtpu knows no {where.chip.name}. It compiles for "
            f"{', '.join(NAMES)}; take the nearest of them, or price {target.name} with the "
            "simulator."
        )
    return Topology(
        name=f"{name}:{shape_name(where.torus.shape)}{'_twisted' if where.torus.twisted else ''}",
        options=_options(where, slices),
        devices=where.devices * slices,
    )


def _options(where: Slice, slices: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if any(where.torus.wrap) and len(where.torus.shape) == 3:
        options["wrap"] = list(where.torus.wrap)
    if where.torus.chips == 1:
        # libtpu's own default is a host of 2x2 chips.
        options["chips_per_host_bounds"] = [1, 1, 1]
    if slices > 1:
        options["num_slices"] = slices
    if where.chip.name == "v4" and where.devices_per_chip == 1:
        options["chip_config_name"] = "megacore"
    return options
