# SPDX-License-Identifier: Apache-2.0
"""Rank 0, whose process is the store's host, is stopped while rank 1 waits for it.

Rank 1 prints its error and ends with code 3.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
from lost_store import stop_until_ended
from torch import distributed as dist


def main() -> None:
    """Run one rank."""
    dist.init_process_group(timeout=timedelta(seconds=5))
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    torch.tpu.set_device(rank)
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x)
    if rank == 0:
        stop_until_ended(int(store.get("waits")))
    store.set("waits", str(os.getpid()))
    try:
        dist.all_reduce(x)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
