# SPDX-License-Identifier: Apache-2.0
"""The script's device meshes: which a plan refuses, and the device that the first one chooses.

Groups of ranks that a script lists itself are left alone: several may make up the whole.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchtpu_core.ici.mesh import complete_sizes
from torchtpu_core.plan.records import Recording


def replace(stack: contextlib.ExitStack, recording: Recording) -> None:
    """Meshes of the script are checked and choose the rank's device, until the stack is left."""
    _device_of_rank(stack, recording)
    checked = _init_of_whole_meshes(recording)
    for module in (dist, dist.device_mesh):  # each holds the name
        stack.enter_context(mock.patch.object(module, "init_device_mesh", checked))


def _device_of_rank(stack: contextlib.ExitStack, recording: Recording) -> None:
    """The first mesh chooses the rank's device, and "tpu" is that device.

    PyTorch does neither where the group is a fake one or the device has not started.
    """
    real = DeviceMesh._setup_world_group_and_device

    def set_up(self: DeviceMesh) -> Any:
        if self._layout.numel() > recording.world_size:
            names = self.mesh_dim_names or [f"axis {axis}" for axis in range(self.ndim)]
            complete_sizes(dict(zip(names, self.shape, strict=True)), recording.world_size)
        group = real(self)
        if self.device_type == "tpu" and not recording.ops and not torch.tpu.current_device():
            torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
        return group

    stack.callback(torch.tpu.set_device, torch.tpu.current_device())
    stack.enter_context(mock.patch.object(DeviceMesh, "_setup_world_group_and_device", set_up))
    stack.enter_context(mock.patch.object(torch.tpu, "is_initialized", lambda: True))


def _init_of_whole_meshes(recording: Recording) -> Any:
    """An `init_device_mesh` that refuses sizes that do not divide the ranks.

    Ranks that a mesh leaves out fail at its first group, so the plan of one that is in it would
    promise too much.
    """
    real = init_device_mesh

    def init(device_type: str, mesh_shape: Sequence[int], **options: Any) -> DeviceMesh:
        size, world = math.prod(mesh_shape), recording.world_size
        if size != world:
            names = options.get("mesh_dim_names") or range(len(mesh_shape))
            sizes = {str(name): length for name, length in zip(names, mesh_shape, strict=False)}
            if size < 1 or world % size:
                complete_sizes(sizes, world)
            note = f"the mesh {sizes} has {size} of {world} ranks; the others are in no group of it"
            recording.notes += [note] * (note not in recording.notes)
        return real(device_type, tuple(mesh_shape), **options)

    return init
