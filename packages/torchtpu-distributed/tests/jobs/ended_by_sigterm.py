# SPDX-License-Identifier: Apache-2.0
"""Rank 1 is ended by SIGTERM while it is in no collective; by rank 0, as launchers do, or alone.

    python ended_by_sigterm.py <what rank 1 did before>

A rank that gets an error prints ``ERROR <class>: <message>`` and ends with code 3.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
from torch import distributed as dist
from torchtpu_distributed import active, differences
from torchtpu_distributed.processes import is_running


def leave(group: dist.ProcessGroup) -> None:
    """Destroy a group."""
    dist.destroy_process_group(group)


def compute() -> None:
    """Longer than the test may take."""
    time.sleep(600)


def misbehave(how: str, group: dist.ProcessGroup) -> None:
    """What rank 1 does, until it is ended."""
    if how == "alone":
        (made,) = (g for g in active.world.ledger.groups.values() if g.seq == 1)
        while differences.reached(made, 0, 2)[0] < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "leaves":
        leave(group)
        dist.distributed_c10d._get_default_store().set("left", "")
    compute()


def go_on(how: str, x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """What rank 0 calls meanwhile."""
    if how == "leaves":
        dist.distributed_c10d._get_default_store().wait(["left"])
    if how != "does_all":
        dist.all_reduce(x, group=group)


def end_other() -> None:
    """As a launcher ends the ranks of a job of which one has failed."""
    other = active.world.peers[1]
    os.kill(other.pid, signal.SIGTERM)
    while is_running(other):
        time.sleep(0.01)


def main(how: str) -> None:
    """Run one rank."""
    dist.init_process_group(timeout=timedelta(seconds=60))
    group = dist.new_group([0, 1])
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x, group=group)
    for made in active.world.ledger.groups.values() if how == "late" else ():
        made.timeout_s = 2.0
    if dist.get_rank() == 1:
        misbehave(how, group)
    try:
        go_on(how, x, group)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        end_other()
        sys.exit(3)
    end_other()


if __name__ == "__main__":
    main(*sys.argv[1:])
