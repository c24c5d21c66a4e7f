# SPDX-License-Identifier: Apache-2.0
"""A process group that failed, and one that is made after it in the same process."""

from __future__ import annotations

import datetime
import os

import torch
from torch import distributed as dist
from torchtpu_distributed.errors import CollectiveError


def main() -> None:
    """Run the process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0
    )
    limit = datetime.timedelta(seconds=20)
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=limit)
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(3, device="tpu"))
        else:
            dist.broadcast(torch.ones(3, device="tpu"), 0)
    except CollectiveError as error:
        print(type(error).__name__)
    dist.destroy_process_group()
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=limit)
    total = torch.ones(3, device="tpu")
    dist.all_reduce(total)
    print(total.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
