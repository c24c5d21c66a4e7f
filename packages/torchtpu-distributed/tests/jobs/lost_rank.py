# SPDX-License-Identifier: Apache-2.0
"""All ranks reduce once; then rank 1 misbehaves and the others reduce again.

    python lost_rank.py <what rank 1 does> <number of elements>

A rank that gets an error prints ``ERROR <class>: <message>`` and ends with code 3.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta

import torch
from torch import distributed as dist

TIMEOUT_S = 4


def misbehave(how: str, x: torch.Tensor) -> torch.Tensor:
    """What rank 1 does instead of the second reduction, or the operand it brings to it."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        raise ValueError("the loss is not finite")
    if how == "exits":
        sys.exit(0)
    if how == "late":
        threading.Event().wait(timeout=4 * TIMEOUT_S)
        sys.exit(0)
    return x[:-1] if how == "shape" else x


def main(how: str, elements: str) -> None:
    """Run one rank."""
    dist.init_process_group(timeout=timedelta(seconds=TIMEOUT_S if how == "late" else 60))
    rank = dist.get_rank()
    torch.tpu.set_device(rank)
    x = torch.ones(int(elements)).to("tpu")
    dist.all_reduce(x)
    assert x.cpu()[0] == dist.get_world_size()
    if rank == 1:
        x = misbehave(how, x)
    other = how == "operation" and rank == 1
    try:
        if how == "barrier":
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        dist.all_reduce(x, dist.ReduceOp.MAX if other else dist.ReduceOp.SUM)
        x.cpu()
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("no error", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
