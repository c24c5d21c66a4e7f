# SPDX-License-Identifier: Apache-2.0
"""The store has a process of its own, rank 2's, which is lost while rank 0 waits for rank 1.

    python lost_store.py <where rank 0 waits> [stop | kill_beside_stopped]

The process is killed, or stopped until rank 0 has ended. Rank 1 may be stopped meanwhile.

Rank 0 prints its error and ends with code 3.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist

#: What rank 0 waits in; rank 1 comes to none of them.
WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "init": lambda x: None,
    "group": lambda x: dist.new_group(),
    "reduction": lambda x: dist.all_reduce(x),
}


def wait(where: str, rank: int, store: dist.TCPStore, *, stops: bool) -> None:
    """Run a rank; rank 1 may stop."""
    if where == "init" and rank == 0:  # which has found the store; rank 1 may have, or not
        store.set("ready", str(os.getpid()))
    if where != "init" or rank == 0:
        dist.init_process_group(store=store, rank=rank, world_size=2)
        x = torch.ones(2, device="tpu")
        dist.all_reduce(x)
    if rank == 1:
        store.set("stops", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP) if stops else signal.pause()
    if stops:
        wait_until_stopped(int(store.get("stops")))
    store.set("ready", str(os.getpid()))
    WAITS[where](x)


def stop_until_ended(waiting: int) -> None:
    """Stop this process, and kill it when another one has ended."""
    me = os.getpid()
    if os.fork() == 0:
        while Path(f"/proc/{waiting}/stat").exists() and not is_zombie(waiting):
            time.sleep(0.1)
        os.kill(me, signal.SIGKILL)
        os._exit(0)
    os.kill(me, signal.SIGSTOP)


def wait_until_stopped(process: int) -> None:
    """Until a process has got its signal."""
    while state_of(process) != "T":
        time.sleep(0.01)


def is_zombie(process: int) -> bool:
    """Whether a process has ended and nobody has asked how."""
    return state_of(process) == "Z"


def state_of(process: int) -> str:
    """The letter that the kernel gives it."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def main(where: str, how: str = "kill") -> None:
    """Run one process."""
    rank, address, port = (os.environ[name] for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    is_host = rank == "2"
    store = dist.TCPStore(address, int(port), None, is_host, wait_for_workers=False)
    if is_host:
        store.wait(["ready"])
        if how == "stop":
            stop_until_ended(int(store.get("ready")))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        wait(where, int(rank), store, stops=how.endswith("stopped"))
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
