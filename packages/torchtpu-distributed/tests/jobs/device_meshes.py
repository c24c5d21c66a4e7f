# SPDX-License-Identifier: Apache-2.0
"""A rank of four whose device mesh has another shape than that of the others."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import distributed as dist

NAMES = ("dp", "tp")


def main() -> None:
    """Make the mesh, and reduce over its first axis."""
    dist.init_process_group(timeout=timedelta(seconds=5))
    if sys.argv[1:] == ["flat"] and dist.get_rank() == 2:
        mesh = dist.init_device_mesh("tpu", (4,))  # it is the default group, and makes none
    else:
        shape = (4, 1) if dist.get_rank() == 0 and len(sys.argv) == 1 else (2, 2)
        mesh = dist.init_device_mesh("tpu", shape, mesh_dim_names=NAMES)
    dist.all_reduce(torch.ones(2, device="tpu"), group=mesh.get_group(0))


if __name__ == "__main__":
    main()
