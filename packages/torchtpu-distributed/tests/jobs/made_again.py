# SPDX-License-Identifier: Apache-2.0
"""Process groups that are made and destroyed: prints threads and descriptors after each."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist

ROUNDS = 5
#: How long threads may take to end.
PATIENCE_S = 10.0


def held() -> tuple[int, int]:
    """Threads of this package, and open descriptors."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("tpu_dist")]
    return len(names), len(list(Path("/proc/self/fd").iterdir()))


def main() -> None:
    """Run the process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0
    )
    for _ in range(ROUNDS):
        dist.init_process_group(store=store, rank=rank, world_size=size)
        total = torch.ones(3, device="tpu")
        dist.all_reduce(total)
        dist.all_reduce(total, group=dist.new_group(range(size)))
        assert total.tolist() == [size * size] * 3
        dist.destroy_process_group()
        gc.collect()
        deadline = time.monotonic() + PATIENCE_S
        while held()[0] and time.monotonic() < deadline:
            time.sleep(0.05)
        print(*held(), flush=True)


if __name__ == "__main__":
    main()
