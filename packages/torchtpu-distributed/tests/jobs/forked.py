# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from a rank while a collective is under way.

    python forked.py <what each does>

A rank prints ``FORK <exit status>: <what it printed>`` of each, and then its sum.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable

import torch
from torch import distributed as dist

PATIENCE_S = 20.0


def leave_group() -> None:
    """As a script's clean-up does, in whatever process it runs."""
    dist.destroy_process_group()


def call_all() -> str:
    """What each of the calls of a group says, line by line."""
    said = []
    for call in CALLS:
        try:
            call()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return "\n".join(said)


CALLS: list[Callable[[], object]] = [
    lambda: dist.all_reduce(X),
    lambda: dist.all_reduce(torch.ones(2)),
    lambda: dist.send(torch.ones(2), 1 - dist.get_rank()),
    lambda: dist.all_gather_object([None] * 2, 1),
    dist.barrier,
    dist.new_group,
]
#: What a forked process does before it ends; what it says, if anything.
DEEDS: dict[str, Callable[[], str | None]] = {
    "ends": lambda: None,
    "leaves": leave_group,
    "calls": call_all,
}


def fork(deed: Callable[[], str | None]) -> tuple[int, int]:
    """A process that does something and ends as an interpreter does; its id, and its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.write(writing, (deed() or "").encode())
    sys.exit(0)


def outcome(child: int, reading: int) -> str:
    """How a process ended, and what it wrote; one that hangs is killed."""
    with open(reading, "rb") as output:
        if not select.select([output], [], [], PATIENCE_S)[0]:
            os.kill(child, signal.SIGKILL)
        said = output.read().decode()
    return f"{os.waitpid(child, 0)[1]}: {said}"


dist.init_process_group()
dist.all_reduce(torch.ones(2))
X = torch.ones(1 << 18, device="tpu")
for _ in range(2):
    work = dist.all_reduce(X, async_op=True)
    forked = fork(DEEDS[sys.argv[1]])
    work.wait()
    print(f"FORK {outcome(*forked)}", flush=True)
dist.barrier()
print(f"SUM {X[0].item()}")
dist.destroy_process_group()
