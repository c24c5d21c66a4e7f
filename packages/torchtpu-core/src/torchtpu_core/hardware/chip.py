# SPDX-License-Identifier: Apache-2.0
"""The record of one TPU generation.

A `Chip` holds published figures and nothing computed from a model. A figure that is
not published is None and stays None: code that needs it asks with `Chip.figure`,
which raises instead of guessing.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from torchtpu_core.errors import UnpublishedFigureError
from torchtpu_core.hardware.sourced import Sourced

_NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")


class Wrap(enum.Enum):
    """When the axes of a slice close to rings."""

    NEVER = "no axis"
    FULL_AXIS = "an axis as long as the pod's"
    WHOLE_CUBES = "every axis, if the slice is made of whole 4x4x4 cubes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One TPU generation.

    Attributes:
        name: lower-case name used in targets, such as ``v5e``.
        aliases: other lower-case names users write.
        device_kind: what ``torch.tpu.get_device_name`` answers.
        pjrt_device_kinds: the names that PJRT gives this chip.
        cores_per_chip: TensorCores.
        devices_per_chip: devices that PJRT and torch number; 1 where two cores act as
            one (megacore).
        sparse_cores_per_chip: SparseCores, 0 if there is none, None if not published.
        sparse_core_tiles: vector subcores of a SparseCore.
        sparse_core_lanes: lanes of a tile, 32-bit.
        sparse_core_tile_bytes: memory of a tile.
        mxu_per_core: matrix units of a TensorCore.
        mxu_side: rows, and columns, of a matrix unit.
        vector_slots: operations on registers that a TensorCore starts in one cycle.
        clock_hz: TensorCore clock.
        peak_bf16_flops_per_s: per chip, dense, operands in bfloat16.
        peak_int8_ops_per_s: per chip, dense, operands in int8.
        peak_fp8_flops_per_s: per chip, dense, operands in 8-bit floats.
        peak_fp4_flops_per_s: per chip, dense, operands in 4-bit floats.
        hbm_bytes: HBM capacity per chip.
        hbm_usable_bytes_per_device: what the compiler lets one device allocate.
        hbm_bytes_per_s: HBM bandwidth per chip, reads and writes together.
        vmem_bytes_per_core: vector memory per TensorCore.
        smem_bytes_per_core: scalar memory per TensorCore.
        cmem_bytes_per_chip: common memory, 0 where there is none.
        ici_axes: dimensions of the torus, 0 if the network is not a torus.
        ici_links_per_chip: ICI links of a chip.
        ici_bytes_per_s_per_link: nominal rate of one link in one direction.
        die_to_die_ratio: rate between the two dies of a chip over an ICI link's.
        host_link_bytes_per_s_per_chip: PCIe between host and chip, one direction.
        power_mean_w: measured mean power per chip.
        dcn_bytes_per_s_per_chip: data centre network per chip, one direction.
        dcn_achieved_bytes_per_s_per_chip: the rate that collectives reach on it.
        offloads_collectives: whether the compiler lets SparseCores drive collectives unless
            it is told otherwise.
        twists: whether tori of shapes A x A x 2A and A x 2A x 2A can be twisted.
        wrap: when axes close to rings.
        pod_shape: chips of a pod along each axis, where the pod is a fixed torus.
        pod_chips: chips of the largest slice.
        slice_shapes: shapes below whole cubes, or all shapes where there are no cubes.
        host_bounds: chips of one VM along each axis, in a slice of several VMs.
        single_vm_shapes: larger shapes that one VM serves as well.
        geometry_source: the source of the fields that are plain counts and shapes.
    """

    name: str
    device_kind: str
    geometry_source: str
    aliases: tuple[str, ...] = ()
    pjrt_device_kinds: tuple[str, ...] = ()
    cores_per_chip: int | None = None
    devices_per_chip: int | None = None
    sparse_cores_per_chip: int | None = None
    sparse_core_tiles: int | None = None
    sparse_core_lanes: int | None = None
    sparse_core_tile_bytes: Sourced[int] | None = None
    mxu_per_core: int | None = None
    mxu_side: int | None = None
    vector_slots: Sourced[int] | None = None
    clock_hz: Sourced[float] | None = None
    peak_bf16_flops_per_s: Sourced[float] | None = None
    peak_int8_ops_per_s: Sourced[float] | None = None
    peak_fp8_flops_per_s: Sourced[float] | None = None
    peak_fp4_flops_per_s: Sourced[float] | None = None
    hbm_bytes: Sourced[int] | None = None
    hbm_usable_bytes_per_device: Sourced[int] | None = None
    hbm_bytes_per_s: Sourced[float] | None = None
    vmem_bytes_per_core: Sourced[int] | None = None
    smem_bytes_per_core: Sourced[int] | None = None
    cmem_bytes_per_chip: Sourced[int] | None = None
    ici_axes: int = 0
    ici_links_per_chip: int | None = None
    ici_bytes_per_s_per_link: Sourced[float] | None = None
    die_to_die_ratio: Sourced[float] | None = None
    host_link_bytes_per_s_per_chip: Sourced[float] | None = None
    power_mean_w: Sourced[float] | None = None
    dcn_bytes_per_s_per_chip: Sourced[float] | None = None
    dcn_achieved_bytes_per_s_per_chip: Sourced[float] | None = None
    offloads_collectives: bool = False
    twists: bool = False
    wrap: Wrap = Wrap.NEVER
    pod_shape: tuple[int, ...] = ()
    pod_chips: int = 0
    slice_shapes: tuple[tuple[int, ...], ...] = ()
    host_bounds: tuple[int, ...] = ()
    single_vm_shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot name a chip: use lower-case letters and digits, "
                    "because the name is written before the colon of a target."
                )
        for shape in (*self.slice_shapes, *self.single_vm_shapes, self.host_bounds):
            if shape and len(shape) != self.ici_axes:
                raise ValueError(
                    f"{self.name}: shape {shape} needs {self.ici_axes} axes, like the torus."
                )

    def figure(self, field: str) -> float:
        """The value of a sourced field, such as ``hbm_bytes_per_s``.

        Raises:
            UnpublishedFigureError: the chip's maker has not published it.
        """
        sourced = getattr(self, field)
        if sourced is None:
            raise UnpublishedFigureError(
                f"{field} of chip {self.name!r} is not published, so this cannot be simulated. "
                "Choose another chip, or register a record with the figure and its source."
            )
        value: float = sourced.value
        return value

    @property
    def hbm_device_bytes(self) -> int:
        """HBM that programs of one device can use; all of its share where not measured."""
        if self.hbm_usable_bytes_per_device is not None:
            return self.hbm_usable_bytes_per_device.value
        return int(self.figure("hbm_bytes")) // (self.devices_per_chip or 1)
