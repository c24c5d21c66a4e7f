# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu.distributed.topology_aware_mesh`, without the other ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch_tpu
from torchtpu_core.errors import MeshShapeError

FAKE_WORLD = """
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.Backend.backend_capability["fake"].append("tpu")
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=256)
mesh = torch.tpu.distributed.topology_aware_mesh(
    {"data": 4, "fsdp": -1, "tensor": 4}, topology="v5e:16x16"
)
ranks = sorted(mesh.mesh.ravel().tolist())
print(mesh.mesh_dim_names, tuple(mesh.shape), ranks == list(range(256)))
"""


def test_topology_aware_mesh_is_a_device_mesh_of_all_ranks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAKE_WORLD], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "('data', 'fsdp', 'tensor') (4, 16, 4) True", done.stderr[-2000:]


def test_topology_aware_mesh_of_the_wrong_size_raises() -> None:
    with pytest.raises(MeshShapeError, match="8 does not divide 4"):
        torch.tpu.distributed.topology_aware_mesh({"data": -1, "model": 8}, topology="v5e:2x2")


def test_facade_has_the_mesh_of_the_device_module() -> None:
    pytest.importorskip("torchtpu_distributed")
    assert torch_tpu.distributed.topology_aware_mesh is torch.tpu.distributed.topology_aware_mesh
