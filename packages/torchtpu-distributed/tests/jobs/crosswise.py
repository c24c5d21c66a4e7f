# SPDX-License-Identifier: Apache-2.0
"""Ranks that share two groups use them in different orders.

    python crosswise.py (alone | threads | later) [<timeout in seconds>]

With ``threads`` each rank has a thread that idles, with ``later`` rank 0's goes on to the second
group once both ranks wait and have looked at each other a few times.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import torch
from torch import distributed as dist
from torchtpu_distributed import active
from torchtpu_distributed.board import Board

#: So many beats of a heart are enough for its rank to find a circle.
BEATS = 6


def reduce_in(group: dist.ProcessGroup) -> float:
    """The sum of a one of each rank."""
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x, group=group)
    return float(x.cpu()[0])


def wait_until_both_wait() -> None:
    """Until both ranks have shown for a while for whom they wait."""
    board = Board(active.world.store, 0)
    while not all(board.waits_for(rank) for rank in (0, 1)):
        time.sleep(0.05)
    before = board.beats([0, 1])
    while any(count < before[rank] + BEATS for rank, count in board.beats([0, 1]).items()):
        time.sleep(0.05)


def make_groups(size: int) -> list[dist.ProcessGroup]:
    """One of each rank and the next one, connected; of two ranks, two of both."""
    groups = [dist.new_group(sorted({i, (i + 1) % size})) for i in range(size)]
    for group in groups:
        if dist.get_rank(group) >= 0:
            reduce_in(group)
    return groups


def reduce_from_two_threads(own: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    """What a thread of its own calls in the second group ends the wait of the other rank."""

    def reduce_later() -> None:
        wait_until_both_wait()
        reduce_in(other)

    thread = threading.Thread(target=reduce_later)
    thread.start()
    assert reduce_in(own) == 2
    thread.join()


def main(how: str, timeout_s: str = "60") -> None:
    """Run one rank."""
    dist.init_process_group(timeout=timedelta(seconds=float(timeout_s)))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.tpu.set_device(rank)
    groups = make_groups(size)
    own, other = groups[rank], groups[rank - 1]
    if how == "threads":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    try:
        if how == "later" and rank == 0:
            reduce_from_two_threads(own, other)
        else:
            reduce_in(own)
            reduce_in(other)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("no error", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
