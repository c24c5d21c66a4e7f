# SPDX-License-Identifier: Apache-2.0
"""Rank 1 destroys a group that the others still use; it goes on, or ends.

    python destroyed_group.py <what rank 1 does> [<kind of tensor or call>]

A rank that gets an error prints ``ERROR <class>: <message>`` and ends with code 3.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import distributed as dist
from torchtpu_distributed import active, differences


def leave(group: dist.ProcessGroup | None) -> None:
    """Destroy a group; None for the world."""
    dist.destroy_process_group(group)


def fail_and_leave(group: dist.ProcessGroup) -> None:
    """As scripts do that clean up."""
    try:
        raise ValueError("the loss is not finite")
    finally:
        leave(group)


def wait_for_call() -> None:
    """Until rank 0 has called the second reduction."""
    (group,) = (g for g in active.world.ledger.groups.values() if g.seq == 1)
    while differences.reached(group, 0, 2)[0] < 2:
        pass


def go_on(x: torch.Tensor, group: dist.ProcessGroup | None, call: str) -> None:
    """Use the group that rank 1 has destroyed."""
    if call == "message":
        dist.recv(x, 1, group=group)
    else:
        dist.all_reduce(x, group=group)
    x.cpu()


#: Where rank 0 calls once rank 1 has left.
FIRST = ("goes_on", "stays")


def misbehave(how: str, group: dist.ProcessGroup | None, x: torch.Tensor) -> None:
    """What rank 1 does."""
    store = dist.distributed_c10d._get_default_store()
    if how == "waited_for":
        wait_for_call()
    (fail_and_leave if how == "fails" else leave)(None if how == "world" else group)
    if how in FIRST:
        store.set("left", "")
    if how == "goes_on":
        dist.all_reduce(x)  # of the world
    if how == "stays":
        store.wait(["told"])


def main(how: str, call: str = "") -> None:
    """Run one rank."""
    dist.init_process_group(timeout=timedelta(seconds=60))
    store = dist.distributed_c10d._get_default_store()
    rank, group = dist.get_rank(), None if how == "world" else dist.new_group([0, 1])
    x = torch.ones(4, device="cpu" if call == "host" else "tpu")
    try:
        if how == "after":  # rank 1 has come to everything
            work = dist.all_reduce(x, group=group, async_op=True)
            if rank == 1:
                leave(group)
                store.set("left", "")
            else:
                store.wait(["left"])
            work.wait()
        elif rank == 1:
            dist.all_reduce(x, group=group)
            misbehave(how, group, x)
        elif rank == 0 or how == "world":
            dist.all_reduce(x, group=group)
            if how in FIRST:
                store.wait(["left"])
            go_on(x, group, call)
        else:
            dist.all_reduce(x)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        if rank == 0:
            store.set("told", "")
        sys.exit(3)
    print("no error", x.tolist(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
