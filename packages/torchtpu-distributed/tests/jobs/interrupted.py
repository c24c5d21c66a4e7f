# SPDX-License-Identifier: Apache-2.0
"""Rank 0 is interrupted, as by Ctrl-C, while it waits for rank 1, which does not come.

python interrupted.py <where rank 0 waits>
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable

import torch
import torchtpu_distributed.creation  # noqa: F401 - otherwise init_process_group imports it
from torch import distributed as dist

#: By then rank 0 waits; if it is late, it is interrupted on its way.
PATIENCE_S = 1.0

#: What rank 0 waits in.
WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "group": lambda x: dist.new_group(),
    "reduction": lambda x: dist.all_reduce(x),
    "later": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "host": lambda x: dist.all_reduce(torch.ones(2)),
    "objects": lambda x: dist.all_gather_object([None, None], "mine"),
    "message": lambda x: dist.recv(x, 1),
    "host_message": lambda x: dist.recv(torch.ones(2), 1),
    "barrier": lambda x: dist.barrier(),
}


def stay_or_be_interrupted(rank: int) -> None:
    """Rank 1 stays here until it is killed."""
    if rank == 1:
        signal.pause()
    gc.disable()  # what is raised in a callback of the collector, such as JAX's, is lost
    threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGINT)).start()


def main(where: str) -> None:
    """Run one rank."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, address, port = (os.environ[name] for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    store = dist.TCPStore(address, int(port), 2, rank == "0")
    if where == "init":
        stay_or_be_interrupted(int(rank))
    dist.init_process_group(store=store, rank=int(rank), world_size=2)
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x)
    stay_or_be_interrupted(int(rank))
    try:
        WAITS[where](x)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
