# SPDX-License-Identifier: Apache-2.0
"""Default groups with gloo that are split: prints sums over the part."""

from __future__ import annotations

import os

import torch
from torch import distributed as dist

#: Also with gloo before the device's backend, in a process that has had gloo already.
NAMES = ("tpu:tpu_dist,cpu:gloo", "cpu:gloo,tpu:tpu_dist")


def main() -> None:
    """Run the process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("tpu", rank)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0
    )
    for name in NAMES:
        dist.init_process_group(name, store=store, rank=rank, world_size=size, device_id=device)
        part = dist.split_group(split_ranks=[list(range(size))])
        for x in (torch.ones(2), torch.ones(2, device=device)):
            dist.all_reduce(x, group=part)
            print(x.tolist(), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
