# SPDX-License-Identifier: Apache-2.0
"""Prints the timeouts in seconds of groups that a rank makes in different ways."""

from __future__ import annotations

from datetime import timedelta

from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torchtpu_distributed import active


def main() -> None:
    """Run the only rank."""
    dist.init_process_group(timeout=timedelta(seconds=77))
    dist.new_group()
    init_device_mesh("tpu", (1, 1))
    dist.new_group(timeout=timedelta(seconds=5))
    groups = [*active.world.ledger.groups.values()]
    print(sorted(group.timeout_s for group in groups if "CPU" not in group.name))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
