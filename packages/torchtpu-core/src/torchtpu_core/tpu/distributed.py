# SPDX-License-Identifier: Apache-2.0
"""Device meshes that follow the torus: ``torch.tpu.distributed``.

Chooses which rank stands where; the process group is `torchtpu-distributed`'s. Rank i is
taken to be device i of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchtpu_core.errors import TargetError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["topology_aware_mesh"]


def topology_aware_mesh(
    axes: Mapping[str, int],
    *,
    topology: str | None = None,
    slices: int = 1,
    traffic: Mapping[str, float] | None = None,
) -> DeviceMesh:
    """A `DeviceMesh` whose busiest axes lie on the fastest links.

    Args:
        axes: devices along each mesh axis by name, outermost first, such as
            ``{"data": 2, "fsdp": 8, "tensor": 4}``; one may be -1.
        topology: the slice, such as ``v5p:4x4x4``; by default the simulated target's.
        slices: slices of the job.
        traffic: bytes that each axis moves, relative to the others; by default what is usual
            for its name.

    Raises:
        TargetError: no topology is given and the target is not a simulated slice.
        MeshShapeError: the axes do not multiply to the number of devices.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from torchtpu_core.ici.mesh import topology_aware_mesh as lay_out
    from torchtpu_core.ici.network import Network
    from torchtpu_core.ici.slices import parse_slice

    if topology is not None:
        slice_ = parse_slice(topology)
    else:
        from torchtpu_core.runtime.current import target

        current = target()
        if current.target.slice_ is None:
            raise TargetError(
                f"The target {current.name!r} does not say how its chips are joined. Pass "
                "topology, such as topology='v5p:4x4x4'."
            )
        slice_ = current.target.slice_
    mesh = lay_out(Network.of(slice_, slices), axes, traffic=traffic)
    ranks = torch.from_numpy(mesh.devices.copy())
    return DeviceMesh("tpu", ranks, mesh_dim_names=tuple(mesh.sizes))
